//! The numbers of system calls on this machine, as filters and notifications have them.

macro_rules! calls {
    ($($name:ident = $number:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($number), "`")]
            #[allow(clippy::useless_conversion, reason = "c_long has 32 bits elsewhere")]
            pub const $name: i64 = $number as i64;
        )*
    };
}

calls! {
    ACCEPT = libc::SYS_accept;
    ACCEPT4 = libc::SYS_accept4;
    CONNECT = libc::SYS_connect;
    GETPEERNAME = libc::SYS_getpeername;
    GETSOCKNAME = libc::SYS_getsockname;
    IO_URING_ENTER = libc::SYS_io_uring_enter;
    IO_URING_REGISTER = libc::SYS_io_uring_register;
    IO_URING_SETUP = libc::SYS_io_uring_setup;
    LISTEN = libc::SYS_listen;
    PPOLL = libc::SYS_ppoll;
    PSELECT6 = libc::SYS_pselect6;
    SENDMSG = libc::SYS_sendmsg;
    SENDTO = libc::SYS_sendto;
}

// AArch64 has only `ppoll` and `pselect6`, which the kernel begins again as they are.
#[cfg(target_arch = "x86_64")]
calls! {
    POLL = libc::SYS_poll;
    RESTART_SYSCALL = libc::SYS_restart_syscall;
    SELECT = libc::SYS_select;
}
