# A service manager: the sockets that truepeer leaves in its store survive truepeer's end, and it is started again with them
# (sd_notify(3), sd_listen_fds(3)). Arguments: the program and its options.
import os, select, socket, sys

notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind("notify")
os.chmod("notify", 0o777)
store = []  # (name, descriptor)


def start():
    child = os.fork()
    if child:
        print("started", child, "with", len(store), flush=True)
        return child
    high = [os.dup2(fd, 200 + place) for place, (_, fd) in enumerate(store)]
    for place, fd in enumerate(high):
        os.dup2(fd, 3 + place)
        os.close(fd)
    os.environ.update(NOTIFY_SOCKET=os.path.abspath("notify"), LISTEN_PID=str(os.getpid()))
    os.environ.update(LISTEN_FDS=str(len(store)), LISTEN_FDNAMES=":".join(name for name, _ in store))
    os.execv(sys.argv[1], sys.argv[1:])


def hear():
    message, sockets, _, _ = socket.recv_fds(notify, 4096, 64)
    for fd in sockets:
        os.set_inheritable(fd, False)
    said = dict(line.split("=", 1) for line in message.decode().split("\n") if line)
    if "FDSTORE" in said:
        store.extend((said["FDNAME"], fd) for fd in sockets)
        return
    if "FDSTOREREMOVE" in said:
        for kept in [kept for kept in store if kept[0] == said["FDNAME"]]:
            store.remove(kept)
            os.close(kept[1])
    for fd in sockets:  # of BARRIER=1
        os.close(fd)


while True:
    child = start()
    end = os.pidfd_open(child)
    while True:
        ready = select.select([notify, end], [], [])[0]
        if notify in ready:
            hear()
        elif end in ready:
            break
    os.close(end)
    os.waitpid(child, 0)
