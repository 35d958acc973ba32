//! VPP's library takes over two functions with a variable number of arguments in the programs that it is
//! loaded into: ioctl(2) and fcntl(2). This program does so too, and reads the arguments as VPP's ldp.c does.

use std::ffi::{c_int, c_ulong};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, Ordering};

use truepeer_sys::socket::unacknowledged_bytes;

/// What FIONBIO was last asked for.
static NON_BLOCKING: AtomicI32 = AtomicI32::new(-1);

/// Stands before the C library's. A call with fewer arguments leaves `length` as whatever the register
/// contains.
// SAFETY: the C library's ioctl has the same arguments and result; no other function of this program has the
// name.
#[unsafe(no_mangle)]
extern "C" fn ioctl(_: c_int, request: c_ulong, buffer: *mut c_int, length: *const u32) -> c_int {
    match request {
        // SAFETY: the tests' callers must pass pointers to live values: VPP's library demands no less.
        libc::TIOCOUTQ if !length.is_null() && unsafe { length.read_unaligned() } == 4 => {
            // SAFETY: as above.
            unsafe { buffer.write(7) };
            0
        }
        libc::FIONBIO => {
            // SAFETY: as above.
            NON_BLOCKING.store(unsafe { buffer.read() }, Ordering::Relaxed);
            0
        }
        _ => -1,
    }
}

/// Stands before the C library's. It reads one number, whatever the command is, and knows three commands.
// SAFETY: the C library's fcntl has the same arguments and result; no other function of this program has the
// name.
#[unsafe(no_mangle)]
extern "C" fn fcntl(_: c_int, command: c_int, _: c_int) -> c_int {
    match command {
        libc::F_SETFL | libc::F_GETFL | libc::F_SETFD => 0,
        _ => {
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
            -1
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
fn connection() -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    (TcpStream::connect(address).expect("a connection"), listener)
}

#[test]
fn unacknowledged_bytes_are_asked_for_as_vpps_library_reads_them() {
    assert_eq!(unacknowledged_bytes(connection().0.as_fd()).unwrap(), 7);
}

#[test]
fn a_socket_is_made_non_blocking_as_vpps_library_reads_it() {
    connection().0.set_nonblocking(true).unwrap();
    assert_eq!(NON_BLOCKING.load(Ordering::Relaxed), 1);
}

/// So truepeer must not need a duplicate of a socket there.
#[test]
fn vpps_library_duplicates_no_socket() {
    let error = connection().0.try_clone().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
}
