# Makes a thread's epoll_wait() fail with EBADF, as if its descriptor had been closed.
# Arguments: process number, thread name. Exit status 77: ptrace is not permitted here.
import ctypes, errno, os, platform, sys

SEIZE, INTERRUPT, CONT, DETACH, GETREGSET, SETREGSET = 0x4206, 0x4207, 7, 17, 0x4204, 0x4205
NT_PRSTATUS, WALL = 1, 0x40000000
# The registers of the system call's number and of its result, and the numbers of epoll_wait and epoll_pwait.
MACHINES = {'x86_64': (15, 10, {232, 281}), 'aarch64': (8, 0, {22})}
if platform.machine() not in MACHINES: raise SystemExit(77)
NUMBER, RESULT, WAITS = MACHINES[platform.machine()]

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
def ptrace(request, address=None, data=None):
    if libc.ptrace(request, thread, address, data) == -1:
        code = ctypes.get_errno()
        if request == SEIZE and code in (errno.EPERM, errno.ENOSYS): raise SystemExit(77)
        raise OSError(code, 'ptrace(%#x)' % request)

class Piece(ctypes.Structure):
    _fields_ = [('start', ctypes.c_void_p), ('length', ctypes.c_size_t)]

process, name = sys.argv[1:]
threads = os.listdir('/proc/%s/task' % process)
[thread] = [int(one) for one in threads if open('/proc/%s/task/%s/comm' % (process, one)).read().strip() == name]
ptrace(SEIZE)
while True:
    ptrace(INTERRUPT)
    os.waitpid(thread, WALL)
    registers = (ctypes.c_ulonglong * 64)()
    piece = Piece(ctypes.addressof(registers), ctypes.sizeof(registers))
    ptrace(GETREGSET, NT_PRSTATUS, ctypes.addressof(piece))
    # EINTR: the thread was waiting in it.
    if registers[NUMBER] in WAITS and ctypes.c_longlong(registers[RESULT]).value == -errno.EINTR: break
    ptrace(CONT)
registers[RESULT] = ctypes.c_ulonglong(-errno.EBADF).value
ptrace(SETREGSET, NT_PRSTATUS, ctypes.addressof(piece))
ptrace(DETACH)
