"""Keeps files open that have no name, and makes new ones in the place of old ones until it is killed."""
import os
import random
import resource
import sys

directory, number = sys.argv[1], int(sys.argv[2])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def make():
    return os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)


files = [make() for _ in range(number)]
print("ready", flush=True)
while True:
    at = random.randrange(number)
    os.close(files[at])
    files[at] = make()
