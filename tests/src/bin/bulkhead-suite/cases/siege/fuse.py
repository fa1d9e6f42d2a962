# A filesystem of a tenant's own (fuse(4)), with one file. How it behaves once it is told to is the first argument.
import ctypes, fcntl, os, struct, sys, threading
mode, point = sys.argv[1], sys.argv[2]
node = sys.argv[3] if len(sys.argv) > 3 else None
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fuse
if libc.mount(b"tenant", point.encode(), b"fuse", 0, options.encode()):
    raise OSError(ctypes.get_errno(), "mount")
hostile = False
SIZE = 1 << 20
def attr(ino):
    kind = 0o40755 if ino == 1 else 0o100644
    if ino == 1 and hostile and mode == "bad":
        kind = 0o100644
    return struct.pack("<6Q10I", ino, 0 if ino == 1 else SIZE, 0, 0, 0, 0, 0, 0, 0, kind, 1, 0, 0, 0, 4096, 0)
def reply(unique, error, data=b""):
    os.write(fuse, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
def serve():
    while True:
        packet = os.read(fuse, 1 << 20)
        length, op, unique, nodeid = struct.unpack_from("<IIQQ", packet)
        if op == 26:
            reply(unique, 0, struct.pack("<4I2H2I2HI7I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0, *[0] * 7))
        elif op == 2:
            pass
        elif hostile and mode == "hang" and op in (3, 52):
            pass
        elif hostile and mode == "error" and op in (3, 52):
            reply(unique, -1)
        elif op == 3:
            reply(unique, 0, struct.pack("<QII", 0, 0, 0) + attr(nodeid))
        elif op == 1:
            reply(unique, 0, struct.pack("<4Q2I", 2, 1, 0, 0, 0, 0) + attr(2))
        elif op == 14:
            reply(unique, 0, struct.pack("<QII", 0, 0, 0))
        elif op == 15:
            offset, size = struct.unpack_from("<8xQI", packet, 40)
            reply(unique, 0, bytes(max(0, min(size, SIZE - offset))))
        elif op == 17:
            if mode != "bad":
                reply(unique, 0, bytes(80))
        elif op in (18, 25):
            reply(unique, 0)
        else:
            reply(unique, -38)
threading.Thread(target=serve, daemon=True).start()
if node:
    file = os.open(point + "/file", os.O_RDONLY)
    device = os.open(node, os.O_RDONLY)
    fcntl.ioctl(device, 0x4C00, file)
    os.close(device)
    os.close(file)
hostile = True
if mode == "bad":
    try:
        os.stat(point)
    except OSError:
        pass
print("done", flush=True)
if mode == "die":
    os._exit(0)
sys.stdin.read()
os._exit(0)
