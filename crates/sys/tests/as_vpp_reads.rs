//! VPP's library takes ioctl(2) over in the programs that it is loaded into. This program does so too, and
//! reads the arguments as VPP's ldp.c does.

use std::ffi::{c_int, c_ulong};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use truepeer_sys::socket::unacknowledged_bytes;

/// Stands before the C library's. A call with fewer arguments leaves `length` as whatever the register
/// contains.
// SAFETY: the C library's ioctl has the same arguments and result; no other function of this program has the
// name.
#[unsafe(no_mangle)]
extern "C" fn ioctl(_: c_int, request: c_ulong, buffer: *mut c_int, length: *const u32) -> c_int {
    if request != libc::TIOCOUTQ || length.is_null() {
        return -1;
    }
    // SAFETY: the test's caller must pass pointers to live values: VPP's library demands no less.
    unsafe {
        if length.read_unaligned() != 4 {
            return -1;
        }
        buffer.write(7);
    }
    0
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
fn unacknowledged_bytes_are_asked_for_as_vpps_library_reads_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(unacknowledged_bytes(stream.as_fd()).unwrap(), 7);
}
