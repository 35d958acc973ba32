//! seccomp: which system calls a process may make after its start.
//!
//! All others fail with ENOSYS, as on a kernel that lacks them, and are written to the audit log. They don't
//! kill the process: a library that tries a newer call first falls back to an older one, and a session must
//! not end by that.
//!
//! Calls without conditions cost nothing but a bit test: the kernel remembers them (Linux 5.11).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use truepeer_routes::owners;

use super::job::Job;

macro_rules! numbers {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Reading, writing, waiting.
const TRANSFER: &[i64] = numbers! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_sendto SYS_sendmsg
    SYS_sendmmsg SYS_splice SYS_epoll_pwait SYS_epoll_ctl SYS_epoll_create1 SYS_epoll_pwait2 SYS_ppoll SYS_pselect6
    SYS_eventfd2 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_futex SYS_clock_gettime
    SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_sched_yield SYS_restart_syscall
};
/// Sockets; `socket` itself has a condition. `listen` passes only without a keeper. The keepers put sockets
/// of this process under repair, and such a socket binds and listens beside every other one
/// (SK_FORCE_REUSE). So with a keeper, only that listens.
const SOCKETS: &[i64] = numbers! {
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_shutdown SYS_getsockname SYS_getpeername SYS_getsockopt
    SYS_setsockopt SYS_socketpair SYS_pipe2 SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_fcntl
};
/// Memory and threads, and the end of the keeper; `clone` has a condition. glibc falls back to it from
/// `clone3`, whose arguments no filter sees.
const PROCESS: &[i64] = numbers! {
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk SYS_membarrier SYS_rseq SYS_set_robust_list
    SYS_get_robust_list SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait SYS_sigaltstack
    SYS_tgkill SYS_getpid SYS_gettid SYS_getppid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getgroups SYS_getrandom
    SYS_wait4 SYS_prlimit64 SYS_getrusage SYS_sysinfo SYS_uname SYS_sched_getaffinity SYS_sched_setaffinity SYS_getcpu SYS_capget
    SYS_exit SYS_exit_group
};
/// Files, as far as Landlock and the user's rights permit.
const FILES: &[i64] = numbers! {
    SYS_openat SYS_openat2 SYS_newfstatat SYS_fstat SYS_statx SYS_statfs SYS_fstatfs SYS_lseek SYS_readlinkat SYS_getdents64
    SYS_faccessat SYS_faccessat2 SYS_getcwd SYS_unlinkat SYS_fchmod SYS_fchmodat SYS_umask
    SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
};
/// Replacing a file as a whole, and the lock of a directory.
const KEEPING: &[i64] = numbers! { SYS_renameat SYS_renameat2 SYS_fsync SYS_flock };
/// The older names of some of these, which musl uses.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = numbers! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_unlink SYS_poll SYS_select SYS_epoll_wait SYS_epoll_create
    SYS_pipe SYS_dup2 SYS_chmod SYS_eventfd SYS_getrlimit SYS_time SYS_arch_prctl
};
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];
/// The system calls of the keeper: for its socket, netlink, the kernel's own files, time and memory. `socket`
/// and `setsockopt` have conditions.
const KEEPER: &[i64] = numbers! {
    SYS_recvmsg SYS_sendmsg SYS_recvfrom SYS_sendto SYS_read SYS_write SYS_readv SYS_writev SYS_close SYS_lseek SYS_fcntl
    SYS_openat SYS_newfstatat SYS_fstat SYS_statx SYS_ppoll
    SYS_bind SYS_listen SYS_connect SYS_getsockname SYS_getsockopt
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk SYS_futex SYS_getrandom
    SYS_rt_sigprocmask SYS_rt_sigaction SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
    SYS_clock_gettime SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_sched_yield
    SYS_getpid SYS_gettid SYS_getppid SYS_getuid SYS_geteuid SYS_exit SYS_exit_group
};
/// The older names of some of these.
#[cfg(target_arch = "x86_64")]
const KEEPER_OLDER: &[i64] = numbers! { SYS_open SYS_stat SYS_poll SYS_time };
#[cfg(not(target_arch = "x86_64"))]
const KEEPER_OLDER: &[i64] = &[];
/// The options that the keeper sets: of netlink, those of a client's port that another program listens on and
/// of listening sockets, and buffers.
const KEEPER_OPTIONS: [(i32, Option<i32>); 9] = [
    (libc::SOL_NETLINK, None),
    (libc::IPPROTO_TCP, Some(libc::TCP_REPAIR)),
    (libc::SOL_SOCKET, Some(libc::SO_REUSEADDR)),
    (libc::SOL_SOCKET, Some(libc::SO_REUSEPORT)),
    (libc::IPPROTO_IP, Some(libc::IP_TRANSPARENT)),
    (libc::IPPROTO_IPV6, Some(libc::IPV6_TRANSPARENT)),
    (libc::IPPROTO_IPV6, Some(libc::IPV6_V6ONLY)),
    (libc::SOL_SOCKET, Some(libc::SO_RCVBUFFORCE)),
    (libc::SOL_SOCKET, Some(libc::SO_SNDBUFFORCE)),
];
/// The system calls of the repair keeper. `socket`, `setsockopt` and `ioctl` have conditions.
const REPAIR_KEEPER: &[i64] = numbers! {
    SYS_recvmsg SYS_sendmsg SYS_ppoll SYS_close SYS_fcntl SYS_write SYS_writev
    SYS_bind SYS_connect SYS_getsockname SYS_getsockopt
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk SYS_futex SYS_getrandom
    SYS_rt_sigprocmask SYS_rt_sigaction SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
    SYS_clock_gettime SYS_getpid SYS_gettid SYS_exit SYS_exit_group
};
/// The options that put a socket under repair, or need it.
const REPAIR_OPTIONS: [i32; 5] = [
    libc::TCP_REPAIR,
    libc::TCP_REPAIR_QUEUE,
    libc::TCP_QUEUE_SEQ,
    libc::TCP_REPAIR_OPTIONS,
    libc::TCP_REPAIR_WINDOW,
];
/// The others that the repair keeper sets: of sockets that it makes for a reset, and the newest timestamp of
/// one that asks.
const REPAIR_KEEPER_OPTIONS: [(i32, Option<i32>); 5] = [
    (libc::IPPROTO_TCP, Some(libc::TCP_TIMESTAMP)),
    (libc::SOL_SOCKET, Some(libc::SO_REUSEADDR)),
    (libc::SOL_SOCKET, Some(libc::SO_LINGER)),
    (libc::IPPROTO_IP, Some(libc::IP_TRANSPARENT)),
    (libc::IPPROTO_IPV6, Some(libc::IPV6_TRANSPARENT)),
];
/// linux/sockios.h
const SIOCOUTQNSD: u64 = 0x894B;
const SIOCGIFINDEX: u64 = 0x8933;
/// The families that a socket may have, as a stream or for datagrams: no packet, vsock or crypto sockets, nor
/// raw ones, which CAP_NET_RAW would permit, but for the token that counts the users of the routing rules.
const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];
const TYPES: [i32; 2] = [libc::SOCK_STREAM, libc::SOCK_DGRAM];
/// The type of a socket without its flags: Linux's SOCK_TYPE_MASK.
const TYPE_MASK: u64 = 0xf;
/// And netlink: routes, and sockets.
const NETLINK: [i32; 2] = [libc::NETLINK_ROUTE, libc::NETLINK_SOCK_DIAG];
/// Terminals' requests that type into a shell.
#[allow(clippy::unnecessary_cast, reason = "requests have 32 bits in musl's types")]
const TYPES_IN: [u64; 2] = [libc::TIOCSTI as u64, libc::TIOCLINUX as u64];
/// Names of threads and of memory.
const PRCTL: [i32; 3] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];

/// The system calls of the pins keeper. `socket`, `ioctl` and `bpf` have conditions.
const PINS_KEEPER: &[i64] = numbers! {
    SYS_sendmsg SYS_recvmsg SYS_recvfrom SYS_sendto SYS_read SYS_write SYS_writev SYS_close SYS_lseek
    SYS_fcntl SYS_ppoll SYS_openat SYS_newfstatat SYS_fstat SYS_statx SYS_getdents64 SYS_flock SYS_unlinkat
    SYS_renameat SYS_renameat2 SYS_bind SYS_connect SYS_getsockname SYS_getsockopt SYS_setsockopt
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_brk SYS_futex SYS_getrandom
    SYS_rt_sigprocmask SYS_rt_sigaction SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
    SYS_clock_gettime SYS_clock_nanosleep SYS_nanosleep
    SYS_getpid SYS_gettid SYS_getppid SYS_uname SYS_exit SYS_exit_group
};
/// The older names of some of these.
#[cfg(target_arch = "x86_64")]
const PINS_KEEPER_OLDER: &[i64] =
    numbers! { SYS_open SYS_stat SYS_lstat SYS_poll SYS_unlink SYS_rmdir SYS_rename };
#[cfg(not(target_arch = "x86_64"))]
const PINS_KEEPER_OLDER: &[i64] = &[];

/// Installs the filter, and returns how many calls pass.
pub(super) fn restrict(job: &Job) -> Result<usize> {
    let mut rules = rules()?;
    // It keeps certificates.
    if job.state.is_some() {
        rules.extend(KEEPING.iter().map(|call| (*call, Vec::new())));
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_rename, Vec::new());
    }
    if !job.has_keeper {
        rules.insert(libc::SYS_listen, Vec::new());
    }
    if job.splices && job.has_repair_keeper {
        rules.insert(libc::SYS_setsockopt, no_repair()?);
    }
    if job.splices || job.offloads {
        rules.insert(libc::SYS_bpf, tables()?);
    }
    if job.splices {
        // The locks of the tables, which an upgrade hands over.
        rules.insert(libc::SYS_flock, Vec::new());
    }
    let count = rules.len();
    install(rules)?;
    Ok(count)
}

/// Installs the keeper's filter.
pub(super) fn restrict_keeper() -> Result<()> {
    install(keeper_rules()?)
}

/// Installs the repair keeper's filter.
pub(super) fn restrict_repair_keeper() -> Result<()> {
    install(repair_keeper_rules()?)
}

/// Installs the pins keeper's filter.
pub(super) fn restrict_pins_keeper() -> Result<()> {
    let mut rules = pins_keeper_rules()?;
    rules.insert(libc::SYS_bpf, pinned_programs()?);
    install(rules)
}

fn install(rules: Rules) -> Result<()> {
    let program = compile(rules)?;
    let program: Vec<_> = program
        .iter()
        .map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
        .collect();
    truepeer_sys::seccomp::confine(&program).context("can't install the filter")
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules() -> Result<Rules> {
    let plain = [TRANSFER, SOCKETS, PROCESS, FILES, OLDER];
    let plain = plain.iter().flat_map(|calls| calls.iter());
    let mut rules = Rules::new();
    let any = |index, values: &[u64]| -> Result<Vec<SeccompRule>> {
        values.iter().map(|value| rule(&[(index, SeccompCmpOp::Eq, *value)])).collect()
    };
    rules.insert(libc::SYS_socket, sockets()?);
    rules.insert(libc::SYS_prctl, any(0, &PRCTL.map(unsigned))?);
    let threads = unsigned(libc::CLONE_VM | libc::CLONE_THREAD);
    rules.insert(libc::SYS_clone, vec![rule(&[(0, SeccompCmpOp::MaskedEq(threads), threads)])?]);
    rules.insert(libc::SYS_ioctl, vec![rule(&TYPES_IN.map(|request| (1, SeccompCmpOp::Ne, request)))?]);
    rules.extend(plain.map(|call| (*call, Vec::new())));
    Ok(rules)
}

fn keeper_rules() -> Result<Rules> {
    let mut rules = Rules::new();
    let route = (2, SeccompCmpOp::Eq, unsigned(libc::NETLINK_ROUTE));
    let datagrams = (1, SeccompCmpOp::MaskedEq(TYPE_MASK), unsigned(libc::SOCK_DGRAM));
    let mut sockets = vec![
        rule(&[(0, SeccompCmpOp::Eq, unsigned(libc::AF_NETLINK)), route])?,
        // The lock of the rules.
        rule(&[(0, SeccompCmpOp::Eq, unsigned(libc::AF_UNIX)), datagrams])?,
    ];
    sockets.extend(tcp_sockets()?);
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_setsockopt, options(&KEEPER_OPTIONS)?);
    rules.extend(KEEPER.iter().chain(KEEPER_OLDER).map(|call| (*call, Vec::new())));
    Ok(rules)
}

fn repair_keeper_rules() -> Result<Rules> {
    let mut rules = Rules::new();
    rules.insert(libc::SYS_socket, tcp_sockets()?);
    let repair = REPAIR_OPTIONS.map(|option| (libc::IPPROTO_TCP, Some(option)));
    rules.insert(libc::SYS_setsockopt, options(&[&repair[..], &REPAIR_KEEPER_OPTIONS].concat())?);
    rules.insert(libc::SYS_ioctl, vec![rule(&[(1, SeccompCmpOp::Eq, SIOCOUTQNSD)])?]);
    rules.extend(REPAIR_KEEPER.iter().map(|call| (*call, Vec::new())));
    Ok(rules)
}

fn pins_keeper_rules() -> Result<Rules> {
    let route = (2, SeccompCmpOp::Eq, unsigned(libc::NETLINK_ROUTE));
    let datagrams = (1, SeccompCmpOp::MaskedEq(TYPE_MASK), unsigned(libc::SOCK_DGRAM));
    let mut rules = Rules::new();
    let sockets = vec![
        rule(&[(0, SeccompCmpOp::Eq, unsigned(libc::AF_NETLINK)), route])?,
        // For the number of a device (if_nametoindex(3)).
        rule(&[(0, SeccompCmpOp::Eq, unsigned(libc::AF_UNIX)), datagrams])?,
    ];
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_ioctl, vec![rule(&[(1, SeccompCmpOp::Eq, SIOCGIFINDEX)])?]);
    rules.extend(PINS_KEEPER.iter().chain(PINS_KEEPER_OLDER).map(|call| (*call, Vec::new())));
    Ok(rules)
}

fn tcp_sockets() -> Result<Vec<SeccompRule>> {
    let streams = [libc::AF_INET, libc::AF_INET6].map(|family| {
        let stream = (1, SeccompCmpOp::MaskedEq(TYPE_MASK), unsigned(libc::SOCK_STREAM));
        rule(&[(0, SeccompCmpOp::Eq, unsigned(family)), stream])
    });
    streams.into_iter().collect()
}

/// Permits these options of a level; `None`: all of the level.
fn options(permitted: &[(i32, Option<i32>)]) -> Result<Vec<SeccompRule>> {
    let options = permitted.iter().map(|(level, option)| {
        let level = (1, SeccompCmpOp::Eq, unsigned(*level));
        let option = option.map(|option| (2, SeccompCmpOp::Eq, unsigned(option)));
        rule(&[Some(level), option].into_iter().flatten().collect::<Vec<_>>())
    });
    options.collect()
}

/// All options but those of repair. With them, the owner of a socket that is under repair until its close
/// could choose numbers and a queue, and send.
fn no_repair() -> Result<Vec<SeccompRule>> {
    let others = REPAIR_OPTIONS.map(|option| (2, SeccompCmpOp::Ne, unsigned(option)));
    Ok(vec![rule(&[(1, SeccompCmpOp::Ne, unsigned(libc::IPPROTO_TCP))])?, rule(&others)?])
}

/// bpf(2) on tables that are open already.
fn tables() -> Result<Vec<SeccompRule>> {
    /// linux/bpf.h: BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_MAP_GET_NEXT_KEY,
    /// BPF_MAP_LOOKUP_AND_DELETE_ELEM.
    const COMMANDS: [u64; 5] = [1, 2, 3, 4, 21];
    COMMANDS.iter().map(|command| rule(&[(0, SeccompCmpOp::Eq, *command)])).collect()
}

/// bpf(2) that attaches pinned programs to devices.
fn pinned_programs() -> Result<Vec<SeccompRule>> {
    /// linux/bpf.h: BPF_OBJ_PIN, BPF_OBJ_GET, BPF_OBJ_GET_INFO_BY_FD, BPF_LINK_CREATE, BPF_LINK_UPDATE.
    const COMMANDS: [u64; 5] = [6, 7, 15, 28, 29];
    COMMANDS.iter().map(|command| rule(&[(0, SeccompCmpOp::Eq, *command)])).collect()
}

fn sockets() -> Result<Vec<SeccompRule>> {
    let family = |family| (0, SeccompCmpOp::Eq, unsigned(family));
    let kinds = FAMILIES.iter().flat_map(|of| TYPES.iter().map(move |kind| (*of, *kind)));
    let kinds =
        kinds.map(|(of, kind)| rule(&[family(of), (1, SeccompCmpOp::MaskedEq(TYPE_MASK), unsigned(kind))]));
    let netlink = NETLINK
        .iter()
        .map(|protocol| rule(&[family(libc::AF_NETLINK), (2, SeccompCmpOp::Eq, unsigned(*protocol))]));
    let token = rule(&[
        family(libc::AF_INET),
        (1, SeccompCmpOp::MaskedEq(TYPE_MASK), unsigned(libc::SOCK_RAW)),
        (2, SeccompCmpOp::Eq, owners::PROTOCOL.into()),
    ]);
    kinds.chain(netlink).chain([token]).collect()
}

fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule> {
    let conditions = conditions
        .iter()
        .map(|(index, op, value)| SeccompCondition::new(*index, SeccompCmpArgLen::Dword, op.clone(), *value));
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}

fn unsigned(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

fn compile(rules: Rules) -> Result<BpfProgram> {
    let refuse = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let machine = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, refuse, SeccompAction::Allow, machine)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starts_programs_or_reaches_others_is_on_no_list() {
        let pins = pins_keeper_rules().unwrap();
        for rules in [rules().unwrap(), keeper_rules().unwrap(), repair_keeper_rules().unwrap(), pins] {
            for call in numbers! {
                SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kill SYS_mount SYS_umount2
                SYS_setuid SYS_setresuid SYS_capset SYS_init_module SYS_finit_module SYS_keyctl SYS_io_uring_setup SYS_bpf
                SYS_unshare SYS_setns SYS_clone3 SYS_pidfd_getfd SYS_memfd_create SYS_reboot SYS_kexec_load SYS_userfaultfd
            } {
                assert!(!rules.contains_key(call), "{call}");
            }
            assert!(rules.len() > 30 && compile(rules).is_ok());
        }
    }

    #[test]
    fn a_keeper_starts_nothing_and_only_the_one_that_repairs_no_connection_listens() {
        for rules in [rules().unwrap(), repair_keeper_rules().unwrap(), pins_keeper_rules().unwrap()] {
            assert!(!rules.contains_key(&libc::SYS_listen));
        }
        for rules in [keeper_rules().unwrap(), repair_keeper_rules().unwrap()] {
            for call in numbers! {
                SYS_clone SYS_accept SYS_accept4 SYS_socketpair SYS_unlinkat SYS_tgkill SYS_prctl SYS_dup
            } {
                assert!(!rules.contains_key(call), "{call}");
            }
        }
        assert!(!keeper_rules().unwrap().contains_key(&libc::SYS_ioctl));
        assert!(!repair_keeper_rules().unwrap().contains_key(&libc::SYS_openat));
    }
}
