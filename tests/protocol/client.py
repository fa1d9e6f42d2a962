#!/usr/bin/env python3
"""A client of the helper's protocol, written from protocol/PROTOCOL.md alone.

It shares no code with Bulkhead, so that what the page leaves out shows here. Only Python's standard library is used.
Run it as the user that the helper serves (`--allow-uid`).
"""

import argparse
import array
import socket
import struct
import sys

MAX_PACKET = 4096
HIGHEST_VERSION = 5
MAGIC = b"BULKHEAD"

REQUESTS = ["Create", "SetQuota", "GrowImage", "BindMount", "Unmount", "LoopAttach", "LoopDetach", "LoopResize",
            "MakeDevice", "RemoveDevice", "Usage", "List", "Delete", "PoolStatus", "Listen", "DeleteUnused",
            "SetOwner", "Owner", "MountFilesystem", "UnmountFilesystem", "GrowFilesystem", "PoolCounts",
            "CreateSnapshot", "CreateFrom", "DeleteSnapshot", "ListSnapshots", "Origin", "Delta", "SetInodes",
            "Allocate", "Sharing", "CreateGroup", "MountLabelled"]
KINDS = ["NotFound", "AlreadyExists", "Incompatible", "InUse", "Busy", "NoSpace", "Unsupported", "Invalid", "Refused",
         "PoolBroken", "Io", "WrongKind", "NoRoom", "TooFragmented"]

SEPARATIONS = ["unmounted", "not shared", "covered", "moved"]
# Each kind with its fields: a name, and how a number is packed, or what else it is.
CONDITIONS = [
    ("Unconfined", []), ("ShutDown", []), ("ReadOnly", []), ("NotAnswering", [("seconds", "Q")]),
    ("Apart", [("directory", "name"), ("cause", "separation")]), ("NotServed", [("volumes", "I")]),
    ("Overpromised", [("promised", "Q"), ("limit", "Q")]), ("QuotasOff", []), ("DefaultLimits", []),
    ("QuotaEvasion", [("bytes", "Q"), ("inodes", "Q"), ("first", "I"), ("more", "boolean")]),
    ("QuotaFiles", [("bytes", "Q")]), ("NoInodes", []), ("NotReleased", [("volumes", "I"), ("project", "I")]),
    ("VolumeLimit", [("volumes", "I"), ("limit", "I")]), ("NoExec", []), ("NotEnforced", []),
    ("NotInspected", [("errno", "i")]), ("ImageSize", [("found", "Q"), ("recorded", "Q")]), ("Oversized", [("used", "Q")]),
    ("OtherLimits", [("bytes", "Q"), ("inodes", "Q"), ("soft", "boolean")]), ("Other", []),
    ("FilesystemShutDown", []), ("NotMountable", [("errno", "i")]), ("NotDirect", []), ("Unmounted", []),
]


class Malformed(Exception):
    """A packet that is not what PROTOCOL.md says."""


# Values as bytes.

def u16(value): return struct.pack("<H", value)
def u32(value): return struct.pack("<I", value)
def u64(value): return struct.pack("<Q", value)
def boolean(value): return b"\1" if value else b"\0"


def text(value):
    """A text; bytes are taken as they are, so that they need not be UTF-8."""
    value = value if isinstance(value, bytes) else value.encode()
    return u64(len(value)) + value


def option(value): return b"\0" if value is None else b"\1" + value
def target(directory, path): return text(directory) + text(path)
def flags(read_only=False, noexec=False, noatime=False, nodiratime=False):
    return b"".join(map(boolean, (read_only, noexec, noatime, nodiratime)))


def members(*pairs):
    """Volumes, each with the snapshot that is to be taken of it."""
    return u64(len(pairs)) + b"".join(volume + snapshot for volume, snapshot in pairs)


def directory_spec(size, inodes=1024, mode=0o755, name_hash=bytes(32)):
    return u64(size) + u32(0) + u64(inodes) + u16(mode) + name_hash


def image_spec(size, sparse=False, block_size=0, name_hash=bytes(32)):
    return u64(size) + u32(1) + boolean(sparse) + u32(block_size) + name_hash


def hello(version=HIGHEST_VERSION, magic=MAGIC): return magic + u16(version)
def request(name, *fields): return u32(REQUESTS.index(name)) + b"".join(fields)


class Reader:
    """Takes the values of a packet from its bytes, first to last."""

    def __init__(self, packet):
        self.packet, self.at = packet, 0

    def take(self, length):
        if self.at + length > len(self.packet):
            raise Malformed(f"cut off after {len(self.packet)} bytes")
        self.at += length
        return self.packet[self.at - length:self.at]

    def number(self, form): return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]
    def u16(self): return self.number("H")
    def u32(self): return self.number("I")
    def u64(self): return self.number("Q")

    def below(self, bound, what):
        value = self.u32()
        if value >= bound:
            raise Malformed(f"{what} {value}")
        return value

    def boolean(self):
        value = self.take(1)[0]
        if value > 1:
            raise Malformed(f"bool {value}")
        return value == 1

    def text(self, longest=512):
        length = self.u64()
        if length > longest:
            raise Malformed(f"text of {length} bytes")
        return self.take(length).decode("utf-8")

    def option(self, value): return value() if self.boolean() else None

    def sequence(self, most, value):
        length = self.u64()
        if length > most:
            raise Malformed(f"sequence of {length}")
        return [value() for _ in range(length)]

    def result(self, value):
        """The value, or the error as (kind, message)."""
        if self.below(2, "Result") == 0:
            found = value()
        else:
            kind = KINDS[self.below(len(KINDS), "kind of error")]
            if kind == "Io":
                kind = f"Io {self.number('i')}"
            if kind in ("NoRoom", "TooFragmented"):
                self.u64(), self.u64()
            found = Refusal(kind, self.text())
        if self.at != len(self.packet):
            raise Malformed(f"{len(self.packet) - self.at} bytes left over")
        return found

    def quota_mode(self): return ["enforced", "none"][self.below(2, "QuotaMode")]

    def welcome(self):
        return {
            "version": self.u16(), "release": self.text(), "driver": self.text(63), "csi_socket": self.text(),
            "registers": self.boolean(),
            "publish_directories": self.sequence(16, lambda: (self.text(63), self.text())),
            "pools": self.sequence(16, lambda: (self.text(63), self.quota_mode(), self.text())),
        }

    def spec(self):
        spec = {"size": self.u64()}
        kind = self.below(4, "VolumeKind")
        if kind == 0:
            spec |= {"kind": "directory", "inodes": self.u64(), "mode": oct(self.u16())}
        elif kind == 2:
            spec |= {"kind": "filesystem", "sparse": self.boolean(), "mode": oct(self.u16())}
        elif kind == 3:
            spec |= {"kind": "snapshot", "of": ("image", "filesystem")[self.below(2, "SnapshotOf")]}
            if spec["of"] == "image":
                spec |= {"block_size": (512, 4096)[self.below(2, "BlockSize")]}
        else:
            spec |= {"kind": "image", "sparse": self.boolean(), "block_size": (512, 4096)[self.below(2, "BlockSize")]}
        return spec | {"name_hash": self.take(32).hex()}

    def condition(self):
        kind, fields = CONDITIONS[self.below(len(CONDITIONS), "kind of condition")]
        others = {
            "name": lambda: self.text(63), "boolean": self.boolean,
            "separation": lambda: SEPARATIONS[self.below(len(SEPARATIONS), "cause")],
        }
        return {"kind": kind} | {name: others.get(form, lambda form=form: self.number(form))() for name, form in fields}

    def origin(self):
        return {"source": self.text(130), "family": self.text(130), "copied": self.u64()}

    def snapshot(self):
        return {
            "snapshot": self.text(130), "pool": self.text(63), "size": self.u64(), "block": self.boolean(),
            "allocated": self.u64(), "origin": self.origin(),
        }

    def reply(self):
        variant = self.below(13, "reply")
        if variant == 0:
            return {"reply": "Done"}
        if variant == 1:
            return {"reply": "Size", "bytes": self.u64()}
        if variant == 2:
            return {
                "reply": "Usage", "pool": self.text(63), "spec": self.spec(), "used_bytes": self.option(self.u64),
                "available_bytes": self.option(self.u64), "used_inodes": self.option(self.u64),
                "available_inodes": self.option(self.u64), "targets": self.u32(),
                "condition": self.option(self.condition),
            }
        if variant == 3:
            return {"reply": "Volumes", "volumes": self.sequence(16, lambda: {
                "volume": self.text(130), "pool": self.text(63), "size": self.u64(), "block": self.boolean(),
                "targets": self.u32(),
            })}
        if variant == 4:
            return {
                "reply": "Pool", "quota": self.quota_mode(), "total": self.u64(), "available": self.u64(),
                "largest_volume": self.u64(), "promised": self.u64(), "inode_size": self.u32(), "volumes": self.u32(),
                "emptying": self.u32(), "conditions": self.sequence(25, self.condition),
            }
        if variant == 6:
            return {"reply": "Owner", "owner": self.option(lambda: self.text(1024)), "used": self.boolean()}
        if variant == 7:
            return {
                "reply": "Counts", "filesystem_limit": self.u32(), "filesystems": self.u32(), "inodes": self.u64(),
                "free_inodes": self.u64(), "snapshots": self.u32(), "extent_limit": self.u64(),
                "snapshot_bytes": self.u64(),
            }
        if variant == 8:
            return {"reply": "Snapshot"} | self.snapshot()
        if variant == 9:
            return {"reply": "Snapshots", "snapshots": self.sequence(7, self.snapshot)}
        if variant == 10:
            return {"reply": "Origin", "origin": self.option(self.origin)}
        if variant == 11:
            ranges = self.sequence(200, lambda: (self.u64(), self.u64()))
            return {"reply": "Ranges", "ranges": ranges, "next": self.option(self.u64)}
        if variant == 12:
            return {
                "reply": "Sharing", "allocated": self.u64(), "shared": self.u64(), "next": self.option(self.u64),
            }
        return {"reply": "Listening"}


class Refusal:
    """The helper's typed error."""

    def __init__(self, kind, message):
        self.kind, self.message = kind, message

    def __repr__(self): return f"{self.kind}: {self.message}"


class Connection:
    """A connection to the helper. `receive` gives None when the helper has closed it."""

    def __init__(self, path, seconds=20):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        self.descriptors = []

    def send(self, packet, descriptors=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.socket.sendmsg([packet], rights)

    def receive(self):
        try:
            packet, ancillary, _, _ = self.socket.recvmsg(MAX_PACKET + 1, socket.CMSG_SPACE(16))
        except ConnectionResetError:
            return None
        for _, _, rights in ancillary:
            found = array.array("i")
            found.frombytes(rights)
            self.descriptors += found
        if len(packet) > MAX_PACKET:
            raise Malformed("a packet of more than 4096 bytes")
        return packet or None

    def hello(self, version=HIGHEST_VERSION):
        self.send(hello(version))
        reader = Reader(self.answer())
        return reader.result(reader.welcome)

    def ask(self, packet):
        self.send(packet)
        reader = Reader(self.answer())
        return reader.result(reader.reply)

    def answer(self):
        packet = self.receive()
        if packet is None:
            raise Malformed("the helper has closed the connection")
        return packet

    def close(self): self.socket.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True, help="the helper's socket")
    parser.add_argument("--version", type=int, default=HIGHEST_VERSION, help="the highest version in the hello")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("welcome", help="what the helper answers to a hello")
    commands.add_parser("list", help="all volumes")
    commands.add_parser("pool", help="a pool's free space and condition").add_argument("name")
    commands.add_parser("usage", help="a volume's settings and use").add_argument("volume")
    commands.add_parser("raw", help="a request given in hexadecimal").add_argument("bytes", type=bytes.fromhex)
    arguments = parser.parse_args()
    connection = Connection(arguments.socket)
    welcome = connection.hello(arguments.version)
    answers = [welcome]
    if isinstance(welcome, Refusal):
        pass
    elif arguments.command == "list":
        answers = list(volumes(connection))
    elif arguments.command == "pool":
        answers = [connection.ask(request("PoolStatus", text(arguments.name)))]
    elif arguments.command == "usage":
        answers = [connection.ask(request("Usage", text(arguments.volume), option(None)))]
    elif arguments.command == "raw":
        answers = [connection.ask(arguments.bytes)]
    for answer in answers:
        print(answer)
    return 1 if any(isinstance(answer, Refusal) for answer in answers) else 0


def volumes(connection):
    """All volumes, page after page."""
    after = None
    while page := connection.ask(request("List", option(after), u16(16)))["volumes"]:
        yield from page
        after = text(page[-1]["volume"])


if __name__ == "__main__":
    sys.exit(main())
