"""The corpus: hostile conversations, each with the outcome that protocol/PROTOCOL.md promises."""

from client import (HIGHEST_VERSION, MAGIC, MAX_PACKET, REQUESTS, boolean, directory_spec, flags, hello, image_spec, members,
                    option, request, target, text, u16, u32, u64)

CLOSED = "closed"
NOBODY = text("nobody-has-this-id")
SIZE = u64(1 << 20)
HASH = bytes(32)


class Corpus:
    """The conversations. A step is a packet and its outcome: a reply's name, an error's kind, a welcome's version, or
    CLOSED."""

    def __init__(self, pool, publish):
        self.pool, self.publish = text(pool), publish
        self.valid = {
            "Create": (NOBODY, text("no-such-pool"), directory_spec(1 << 20)),
            "SetQuota": (NOBODY, SIZE, u64(1)),
            "GrowImage": (NOBODY, SIZE),
            "BindMount": (NOBODY, target(publish, "a/b"), flags(), boolean(False)),
            "Unmount": (NOBODY, target(publish, "a/b")),
            "LoopAttach": (NOBODY, boolean(False)),
            "LoopDetach": (NOBODY,),
            "LoopResize": (NOBODY,),
            "MakeDevice": (NOBODY, target(publish, "a/b"), boolean(False)),
            "RemoveDevice": (NOBODY, target(publish, "a/b")),
            "Usage": (NOBODY, option(target(publish, "a/b"))),
            "List": (option(None), u16(16)),
            "Delete": (NOBODY,),
            "PoolStatus": (self.pool,),
            "Listen": (u32(0),),
            "DeleteUnused": (NOBODY,),
            "SetOwner": (NOBODY, text("claim=a/b\n")),
            "Owner": (NOBODY,),
            "MountFilesystem": (NOBODY,),
            "UnmountFilesystem": (NOBODY,),
            "GrowFilesystem": (NOBODY, SIZE),
            "PoolCounts": (self.pool,),
            "CreateSnapshot": (NOBODY, text("no-such-snapshot"), HASH),
            "CreateFrom": (NOBODY, text("no-such-pool"), image_spec(1 << 20), text("no-such-snapshot")),
            "DeleteSnapshot": (NOBODY,),
            "ListSnapshots": (option(None), option(None), u16(7)),
            "Origin": (NOBODY,),
            "Delta": (NOBODY, option(None), u64(0)),
            "SetInodes": (NOBODY, u64(1)),
            "Allocate": (NOBODY,),
            "Sharing": (NOBODY, u64(0)),
            "CreateGroup": (members((NOBODY, text("no-such-snapshot"))), HASH),
            "MountLabelled": (NOBODY, text("system_u:object_r:container_file_t:s0:c1,c2")),
        }
        missing = set(REQUESTS) ^ set(self.valid)
        if missing:
            raise SystemExit(f"corpus.py: self.valid and REQUESTS of client.py differ in: {', '.join(sorted(missing))}")
        # The answer to a request about a volume that does not exist.
        self.answers = dict.fromkeys(REQUESTS, "NotFound") | {
            "Create": "Invalid", "Unmount": "Done", "LoopDetach": "Done", "RemoveDevice": "Done", "List": "Volumes", "Delete": "Done",
            "PoolStatus": "Pool", "Listen": "Listening", "DeleteUnused": "Done",
            "UnmountFilesystem": "Done", "PoolCounts": "Counts",
            "CreateFrom": "Invalid", "DeleteSnapshot": "Done", "ListSnapshots": "Snapshots",
        }

    def all(self):
        yield from self.hellos()
        for name, first, *steps in [*self.versions(), *self.requests(), *self.values()]:
            yield name, ((hello(), HIGHEST_VERSION) if first is None else first), *steps

    def hellos(self):
        """What is not a hello, and what is one that no one can agree with."""
        yield "no bytes", (b"", CLOSED)
        for length in (1, 8, 9):
            yield f"a hello of {length} bytes", (hello()[:length], CLOSED)
        yield "a hello with a byte left over", (hello() + b"\0", CLOSED)
        yield "a hello with other magic bytes", (hello(magic=b"BULKHEAP"), "Invalid"), (None, CLOSED)
        yield "a hello of version 0", (hello(0), "Invalid"), (None, CLOSED)
        yield "a hello of version 0 with other magic bytes", (hello(0, b"bulkhead"), "Invalid"), (None, CLOSED)
        yield "a hello of the highest version there can be", (hello(65535), HIGHEST_VERSION)
        yield "a hello in the other byte order", (MAGIC + b"\0\1", HIGHEST_VERSION)
        yield "garbage", (bytes(range(256)) * 2, CLOSED)
        yield "zeros", (bytes(10), "Invalid"), (None, CLOSED)
        yield "a packet that is too long", (hello() + bytes(MAX_PACKET), CLOSED)
        yield "text", (b"GET / HTTP/1.1\r\n\r\n", CLOSED)
        for name, fields in self.valid.items():
            yield f"{name} before a hello", (request(name, *fields), CLOSED)

    def versions(self):
        """Requests that are newer than what the connection uses, and unknown ones."""
        newer = request("DeleteUnused", NOBODY)
        yield "a request newer than the version in use", (hello(1), 1), (newer, "Invalid"), (newer, "Invalid"), self.ask("List")
        yield "a second hello", None, (hello(), CLOSED)
        for number in (len(REQUESTS), 255, 1 << 16, (1 << 32) - 1):
            yield f"request {number}, which does not exist", None, (u32(number) + NOBODY, CLOSED)

    def requests(self):
        """Every request: as it should be, cut off, too long, and behind one that was answered."""
        for name, fields in self.valid.items():
            packet = request(name, *fields)
            yield f"{name} for what does not exist", None, self.ask(name), self.ask(name)
            yield f"{name} without fields", None, (packet[:4], CLOSED)
            yield f"{name} cut off by a byte", None, self.ask("List"), (packet[:-1], CLOSED)
            yield f"{name} with a byte left over", None, (packet + b"\0", CLOSED)
            yield f"{name} with thousands left over", None, (packet.ljust(MAX_PACKET, b"\0"), CLOSED)
            yield f"{name} that is too long", None, (packet.ljust(MAX_PACKET + 1, b"\0"), CLOSED)
            numbered, (_, outcome) = packet + u32(7), self.ask(name)
            yield f"{name} with the number of a call", None, (numbered, outcome), (packet + u32(0), outcome)
            yield f"{name} with the number of a call in version 2", (hello(2), 2), (numbered, CLOSED)
            yield f"{name} with the numbers of two calls", None, (numbered + u32(7), CLOSED)
            # Where four zeros more are fields as well, the last four bytes are the number of a call.
            outcome = outcome if name in ("Listen", "List", "ListSnapshots") else CLOSED
            yield f"{name} as a number of eight bytes", None, (u64(REQUESTS.index(name)) + packet[4:], outcome)
            if packet[4:12] == NOBODY[:8]:
                for length in (0, 1, 4096, 1 << 20, 1 << 40, 1 << 63, (1 << 64) - 1):
                    lying = packet[:4] + u64(length) + packet[12:]
                    yield f"{name} for an id of {length} bytes, it says", None, (lying, CLOSED)

    def values(self):
        """Values just outside what is valid, and just inside."""
        bad_ids = ["", "a", "A1", "1a", "-a", ".a", "a-", "a.", "a_b", "a b", "a/b", "..", "a\n", "a\0b", "aé", "a" * 131]
        for value in [*map(str.encode, bad_ids), b"a\xff", b"\xc0\xaf", b"a\xed\xa0\x80b"]:
            yield f"the id {value!r}", None, (request("Delete", text(value)), CLOSED)
            yield f"the list after {value!r}", None, (request("List", option(text(value)), u16(1)), CLOSED)
        for value in ("aa", "a1", "a" * 130, "a.-.-b", "a..b", "a--1"):
            yield f"the id {value!r}", None, (request("LoopResize", text(value)), "NotFound")
        for number, outcome in ((0, "Invalid"), (12, "NotFound"), (13, CLOSED)):
            several = members(*((text(f"volume-{each}"), text(f"snapshot-{each}")) for each in range(number)))
            yield f"a group of {number}", None, (request("CreateGroup", several, HASH), outcome)
        twice = members((NOBODY, text("first")), (NOBODY, text("second")))
        yield "a group of one volume twice", None, (request("CreateGroup", twice, HASH), "Invalid")
        of_containers = "system_u:object_r:container_file_t:"
        for value in ("s0", "s0:c1", "s0:c1,c2", "s0:c0.c1023", "s0-s0:c1", "s0:c1-s15:c1,c4.c7"):
            yield f"the level {value!r}", None, (request("MountLabelled", NOBODY, text(of_containers + value)), "NotFound")
        bad_levels = ["", "s", "c1", "S0", "s0:", "s0:c", "s0:c1,", "s0:c1.", "s0:c1.c2.c3", "s0:c12345", "s0-s0-s0", "s0 ",
                      "s0\0", "s0,nouuid", "s0\"", "s0:" + ",".join(["c1"] * 80)]
        for value in [of_containers + level for level in bad_levels] + ["", "s0", "system_u:object_r:etc_t:s0",
                      "system_u:system_r:container_file_t:s0", "root:object_r:container_file_t:s0"]:
            yield f"the context {value[:50]!r}", None, (request("MountLabelled", NOBODY, text(value)), CLOSED)
        for value in ("", "a_b", "-a", "a-", "A", "a" * 64, "a.b", "a/b"):
            yield f"the pool {value!r}", None, (request("PoolStatus", text(value)), CLOSED)
            yield f"the publish directory {value!r}", None, (request("Unmount", NOBODY, target(value, "a")), CLOSED)
        for value in ("a", "1", "a" * 63):
            yield f"the pool {value!r}", None, (request("PoolStatus", text(value)), "Invalid")
        bad_paths = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b", "a\0", "x" * 256,
                     "x/" * 1792 + "x", "x" * 3585]
        for value in [*map(str.encode, bad_paths), b"a\xff", b"\xc0\xae\xc0\xae/a"]:
            yield f"the path {value[:20]!r}", None, (request("Unmount", NOBODY, target(self.publish, value)), CLOSED)
            bind = request("BindMount", NOBODY, target(self.publish, value), flags(), boolean(False))
            yield f"a bind at {value[:20]!r}", None, (bind, CLOSED)
        for value in ("a", "...", "a b", "a\nb", "é", "x" * 255, "/".join(["x" * 255] * 14), "x/" * 1791 + "x"):
            bind = request("BindMount", NOBODY, target(self.publish, value), flags(), boolean(False))
            yield f"a bind at {value[:20]!r}", None, (bind, "NotFound")
        for size in (0, 1, 4095, 4097, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            for name, fields in (("GrowImage", (u64(size),)), ("SetQuota", (u64(size), u64(1))),
                                 ("Create", (self.pool, directory_spec(size))), ("Create", (self.pool, image_spec(size)))):
                yield f"{name} with {size} bytes", None, (request(name, NOBODY, *fields), CLOSED)
        yield "the largest size", None, (request("GrowImage", NOBODY, u64((1 << 63) - 4096)), "NotFound")
        yield "a volume larger than any pool", None, (
            request("Create", NOBODY, self.pool, image_spec((1 << 63) - 4096)), "NoRoom")
        for inodes in (0, 1 << 32, (1 << 64) - 1):
            yield f"{inodes} inodes", None, (request("SetQuota", NOBODY, SIZE, u64(inodes)), CLOSED)
        for mode in (0o2000, 0o2755, 0o4755, 0o10000, 0xffff):
            yield f"the mode {mode:o}", None, (request("Create", NOBODY, self.pool, directory_spec(4096, mode=mode)), CLOSED)
        for value in (2, 255, (1 << 32) - 1):
            yield f"the kind {value}", None, (
                request("Create", NOBODY, self.pool, SIZE + u32(value) + boolean(False) + u32(0) + HASH), CLOSED)
            yield f"the block size {value}", None, (
                request("Create", NOBODY, self.pool, image_spec(4096, block_size=value)), CLOSED)
            yield f"the socket {value}", None, (request("Listen", u32(value)), CLOSED)
        for value in (b"\2", b"\xff"):
            yield f"the bool {value!r}", None, (request("LoopAttach", NOBODY, value), CLOSED)
            yield f"the flag {value!r}", None, (
                request("BindMount", NOBODY, target(self.publish, "a"), value + flags()[1:], boolean(False)), CLOSED)
            yield f"the option {value!r}", None, (request("Usage", NOBODY, value), CLOSED)
            yield f"the list after option {value!r}", None, (request("List", value, u16(1)), CLOSED)
        for value in (b"a\tb", b"a\0", b"\x7f", b"\x1b[2J", "é".encode(), b"\xff", b"a\r\n", b"x" * 1025, b"x" * 3000):
            yield f"the owner {value[:20]!r}", None, (request("SetOwner", NOBODY, text(value)), CLOSED)
        for value in ("", "\n", " ~", "x" * 1024):
            yield f"the owner {value[:20]!r}", None, (request("SetOwner", NOBODY, text(value)), "NotFound")
        for limit in (0, 1, 65535):
            yield f"a list of {limit}", None, (request("List", option(None), u16(limit)), "Volumes")

    def ask(self, name):
        return request(name, *self.valid[name]), self.answers[name]
