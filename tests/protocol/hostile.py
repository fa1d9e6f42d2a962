#!/usr/bin/env python3
"""Hostile conversations with the helper, each with the outcome that protocol/PROTOCOL.md promises.

Run it as the user that the helper serves, while nobody else is connected; volumes that exist are not touched. Each
conversation has a connection of its own, and after each the helper must still serve. The last line is
`N passed, N failed`.
"""

import argparse
import os
import socket
import sys
import time

from client import Connection, HIGHEST_VERSION, Malformed, Reader, Refusal, hello, option, request, u16
from corpus import CLOSED, Corpus


def converse(path, steps):
    """What is wrong with a conversation, if something is."""
    connection = Connection(path)
    for number, (packet, wanted) in enumerate(steps):
        if packet is not None:
            connection.send(packet)
        found = outcome(connection, is_welcome=number == 0)
        if found != wanted:
            return f"step {number} ends with {found!r}, not {wanted!r}"
    connection.close()
    return None


def outcome(connection, is_welcome):
    packet = connection.receive()
    if packet is None:
        return CLOSED
    reader = Reader(packet)
    answer = reader.result(reader.welcome if is_welcome else reader.reply)
    for descriptor in connection.descriptors:
        os.close(descriptor)
    with_descriptor, connection.descriptors = len(connection.descriptors), []
    if isinstance(answer, Refusal):
        return answer.kind
    if with_descriptor != (answer.get("reply") == "Listening"):
        return f"{with_descriptor} descriptors"
    return answer["version"] if is_welcome else answer["reply"]


# Conversations that are more than packets and answers.

def descriptors(path):
    """Descriptors come with a packet."""
    with open("/dev/null", "rb") as null:
        for number in (0, 1, 2, 253):
            connection = Connection(path)
            connection.hello()
            try:
                connection.send(request("List", option(None), u16(1)), [null.fileno()] * number)
            except PermissionError:
                # A kernel with SO_PASSRIGHTS refuses to pass them.
                continue
            if (connection.receive() is None) != (number > 0):
                return f"a packet with {number} descriptors is not answered as it should be"
    return None


def half_closed(path):
    """The client closes the direction in which it sends."""
    connection = Connection(path)
    connection.hello()
    connection.socket.shutdown(socket.SHUT_WR)
    return None if connection.receive() is None else "an answer to nothing"


def gone(path):
    """Clients leave without reading the answer."""
    for _ in range(20):
        connection = Connection(path)
        connection.send(hello())
        connection.send(request("List", option(None), u16(16)))
        connection.close()
    return None


def crowd(path):
    """With one pool, 74 connections are served, and one more is closed."""
    time.sleep(0.2)
    served = [Connection(path) for _ in range(74)]
    for connection in served:
        connection.hello()
    another = Connection(path)
    try:
        another.send(hello())
        answer = another.receive()
    except BrokenPipeError:
        answer = None
    for connection in served:
        connection.ask(request("List", option(None), u16(1)))
        connection.close()
    return None if answer is None else "a further connection is served"


def slow(path):
    """Who says nothing is sent away after five seconds; who has said hello may be silent."""
    silent, idle = Connection(path), Connection(path)
    idle.hello()
    begun = time.monotonic()
    if silent.receive() is not None or not 4 < time.monotonic() - begun < 15:
        return f"a silent client was answered, or sent away after {time.monotonic() - begun:.1f} s"
    time.sleep(1)
    idle.ask(request("List", option(None), u16(1)))
    return None


def serves(path):
    """Fails unless the helper takes a new client, once it has noticed that earlier ones are gone."""
    for attempt in range(50):
        connection = Connection(path)
        try:
            connection.hello()
            return
        except (Malformed, OSError):
            if attempt == 49:
                raise
            time.sleep(0.05)
        finally:
            connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True, help="the helper's socket")
    parser.add_argument("--pool", default="default", help="the name of a pool")
    parser.add_argument("--publish-dir", default="work", help="the name of a publish directory")
    parser.add_argument("--list", action="store_true", help="only list the conversations")
    arguments = parser.parse_args()
    conversations = [(name, lambda path, steps=steps: converse(path, steps))
                     for name, *steps in Corpus(arguments.pool, arguments.publish_dir).all()]
    conversations += [(talk.__doc__, talk) for talk in (descriptors, half_closed, gone, crowd, slow)]
    failed = 0
    for name, talk in conversations:
        if arguments.list:
            print(name)
            continue
        try:
            wrong = talk(arguments.socket)
            serves(arguments.socket)
        except (Malformed, OSError) as error:
            wrong = repr(error)
        if wrong:
            failed += 1
            print(f"{name}: {wrong}")
    if not arguments.list:
        print(f"{len(conversations) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
