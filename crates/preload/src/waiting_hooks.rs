//! Hooks for the C library functions that wait for descriptors. A part of the border to C (see `hooks`) that
//! notes what a thread waits for (`hold`) if a listener is included. The functions work as usual; each
//! descriptor that is not a listener costs one bit test.

use core::ffi::{c_int, c_long};
use core::time::Duration;
use std::time::Instant;

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::abi::{LOWEST, Next, answer};
use crate::bell;
use crate::forks;
use crate::hold::{self, Asked};
use crate::role::role;

static POLL: Next = Next::new(c"poll");
static POLL_CHK: Next = Next::new(c"__poll_chk");
static PPOLL: Next = Next::new(c"ppoll");
static PPOLL_CHK: Next = Next::new(c"__ppoll_chk");
static SELECT: Next = Next::new(c"select");
static PSELECT: Next = Next::new(c"pselect");

/// Finds the functions early, for the reason given at `hooks::at_load`.
pub(crate) fn find_all() {
    for next in [&POLL, &POLL_CHK, &PPOLL, &PPOLL_CHK, &SELECT, &PSELECT] {
        next.function();
    }
}

type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type CancellablePoll = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type PollChk = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, usize) -> c_int;
type Ppoll = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
type PpollChk = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, usize) -> c_int;
type Select = unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
type Pselect = unsafe extern "C" fn(
    c_int,
    *mut fd_set,
    *mut fd_set,
    *mut fd_set,
    *const timespec,
    *const sigset_t,
) -> c_int;

/// poll() by the C library's own function, in which the thread may be cancelled. `false`: errno says why.
///
/// # Safety
/// The requirements of poll(2). No frame between this one and the program's has anything to drop.
pub(crate) unsafe fn wait(fds: &mut [pollfd], limit: c_int) -> bool {
    // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
    // pointer and the length are those of the slice.
    unsafe {
        let next = core::mem::transmute::<*mut core::ffi::c_void, CancellablePoll>(POLL.function());
        next(fds.as_mut_ptr(), fds.len() as nfds_t, limit) >= 0
    }
}

/// Notes a query by poll() and its answer.
///
/// # Safety
/// poll() has just succeeded with these arguments; `mask` is null or points to a set.
unsafe fn note_poll(
    answered: c_int,
    fds: *const pollfd,
    count: nfds_t,
    limit: Option<Duration>,
    mask: *const sigset_t,
) {
    if answered <= 0 || fds.addr() < LOWEST {
        return;
    }
    let work = || {
        role()?.accepting.as_ref()?;
        // SAFETY: the caller guarantees that poll() has just succeeded with `fds` and `count`, so `fds` is an
        // array of `count` structs.
        let fds = unsafe { core::slice::from_raw_parts(fds, usize::try_from(count).ok()?) };
        if fds.iter().any(|one| one.revents != 0 && hold::is_listener(one.fd)) {
            let asked = fds.iter().filter(|one| one.fd >= 0);
            let asked = asked.map(|one| Asked { fd: one.fd, events: one.events, answered: one.revents != 0 });
            // SAFETY: the caller guarantees that `mask` is null or points to a set.
            hold::remember(asked, limit, unsafe { blocked(mask) });
        }
        None
    };
    // It leaves errno unchanged.
    answer(work, || 0_i32);
}

/// The signals that are blocked while the call waits.
///
/// # Safety
/// `mask` is null or points to a set.
unsafe fn blocked(mask: *const sigset_t) -> u64 {
    // SAFETY: the caller guarantees that `mask` is null or points to a set.
    unsafe { mask.as_ref() }.map_or_else(hold::blocked_now, hold::as_bits)
}

/// poll() while connections wait for their header: the bell reports a listener, too. `None`: the call as it
/// is will do.
///
/// # Safety
/// The requirements of ppoll(2).
unsafe fn poll_with_bell(
    fds: *mut pollfd,
    count: nfds_t,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    forks::notice();
    let (bell, count) = (bell::number()?, usize::try_from(count).ok()?);
    if fds.addr() < LOWEST {
        return None;
    }
    // SAFETY: the caller guarantees, as ppoll(2) requires, that `fds` is an array of `count` structs.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count) };
    if !fds.iter().any(|one| one.events & libc::POLLIN != 0 && hold::is_listener(one.fd)) {
        return None;
    }
    let mut asked = fds.to_vec();
    asked.push(pollfd { fd: bell, events: libc::POLLIN, revents: 0 });
    let mut waiting = WithBell::new(limit);
    loop {
        let wait = waiting.next_wait();
        let heard = count + usize::from(waiting.hears);
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right.
        // `asked` has `heard` structs, `wait` is null or points to a time, and `mask` is as ppoll(2)
        // requires.
        let answered = unsafe {
            let next = core::mem::transmute::<*mut core::ffi::c_void, Ppoll>(PPOLL.function());
            next(asked.as_mut_ptr(), heard as nfds_t, pointer(wait.as_ref()), mask)
        };
        if answered < 0 {
            return Some(answered);
        }
        let is_rung = waiting.hears && asked[count].revents != 0;
        for one in &mut asked[..count] {
            if is_rung && one.events & libc::POLLIN != 0 && bell::take(one.fd) {
                one.revents |= one.events & (libc::POLLIN | libc::POLLRDNORM);
            }
        }
        let answered = asked[..count].iter().filter(|one| one.revents != 0).count();
        if waiting.is_over(answered > 0, is_rung) {
            fds.iter_mut().zip(&asked).for_each(|(one, asked)| one.revents = asked.revents);
            return c_int::try_from(answered).ok();
        }
    }
}

/// select() while connections wait for their header, as [`poll_with_bell`]; also returns the rest of its
/// time.
///
/// # Safety
/// The requirements of pselect(2).
unsafe fn select_with_bell(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Option<(c_int, Option<Duration>)> {
    forks::notice();
    let bell = usize::try_from(bell::number()?).ok().filter(|bell| *bell < WORDS * 64)?;
    // SAFETY: the caller guarantees, as pselect(2) requires, that each set is null or has `count` bits.
    let asked = unsafe { question(count, sets.map(<*mut fd_set>::cast_const), || limit) }?;
    let words = usize::try_from(count).ok()?.div_ceil(64);
    let most = count.max(c_int::try_from(bell).ok()? + 1);
    let mut waiting = WithBell::new(limit);
    loop {
        let wait = waiting.next_wait();
        let mut answers = asked.sets;
        answers[0][bell / 64] |= u64::from(waiting.hears) << (bell % 64);
        let [read, write, except] = answers.each_mut().map(|set| set.as_mut_ptr().cast::<fd_set>());
        // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right. Each
        // set has 1024 bits, as an fd_set has, `wait` is null or points to a time, and `mask` is as
        // pselect(2) requires.
        let answered = unsafe {
            let next = core::mem::transmute::<*mut core::ffi::c_void, Pselect>(PSELECT.function());
            next(most, read, write, except, pointer(wait.as_ref()), mask)
        };
        if answered < 0 {
            return Some((answered, waiting.left()));
        }
        let bit = 1 << (bell % 64);
        let is_rung = waiting.hears && answers[0][bell / 64] & bit != 0;
        answers[0][bell / 64] &= !(u64::from(waiting.hears) << (bell % 64));
        if is_rung {
            for fd in descriptors(&asked.sets[0]).filter(|fd| bell::take(*fd)) {
                let place = usize::try_from(fd).unwrap_or_default();
                answers[0][place / 64] |= 1 << (place % 64);
            }
        }
        let own: u32 = answers.iter().flatten().map(|word| word.count_ones()).sum();
        if waiting.is_over(own > 0, is_rung) {
            for (set, answer) in sets.iter().zip(&answers).filter(|(set, _)| !set.is_null()) {
                for (place, word) in answer.iter().take(words).enumerate() {
                    // SAFETY: the caller guarantees that the set has `count` bits, in whole words, as `bits`
                    // reads.
                    unsafe { set.cast::<u64>().add(place).write_unaligned(*word) };
                }
            }
            return Some((c_int::try_from(own).ok()?, waiting.left()));
        }
    }
}

/// A wait that the bell may end.
struct WithBell {
    until: Option<Instant>,
    /// `false` for a moment if the bell rings for another thread's listener.
    hears: bool,
}

impl WithBell {
    fn new(limit: Option<Duration>) -> Self {
        Self { until: limit.and_then(|limit| Instant::now().checked_add(limit)), hears: true }
    }

    fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    fn next_wait(&self) -> Option<timespec> {
        let interval = (!self.hears).then_some(bell::INTERVAL);
        let wait = [self.left(), interval].into_iter().flatten().min()?;
        let tv_sec = c_long::try_from(wait.as_secs()).unwrap_or(c_long::MAX);
        Some(timespec { tv_sec, tv_nsec: wait.subsec_nanos().into() })
    }

    /// Whether the program gets an answer now.
    fn is_over(&mut self, is_answered: bool, is_rung: bool) -> bool {
        self.hears = !is_rung;
        is_answered || self.left().is_some_and(|left| left.is_zero())
    }
}

fn pointer(time: Option<&timespec>) -> *const timespec {
    time.map_or(core::ptr::null(), core::ptr::from_ref)
}

/// `limit` is poll()'s time-out.
fn milliseconds(limit: c_int) -> Option<Duration> {
    u64::try_from(limit).ok().map(Duration::from_millis)
}

/// # Safety
/// `limit` is null or points to a time.
unsafe fn time(limit: *const timespec) -> Option<Duration> {
    // SAFETY: the caller guarantees that `limit` is null or points to a time.
    let limit = unsafe { limit.as_ref() }?;
    length(limit.tv_sec, limit.tv_nsec)
}

/// Whether the kernel accepts this time.
///
/// # Safety
/// `limit` is null or points to a time.
unsafe fn is_valid(limit: *const timespec) -> bool {
    // SAFETY: the caller guarantees that `limit` is null or points to a time.
    limit.is_null() || unsafe { time(limit) }.is_some()
}

fn length(seconds: c_long, nanoseconds: c_long) -> Option<Duration> {
    Some(Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?))
}

/// # Safety
/// The requirements of poll(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
    // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
    // arguments are the program's own, unchanged.
    unsafe {
        let next = core::mem::transmute::<*mut core::ffi::c_void, Poll>(POLL.function());
        let answered = poll_with_bell(fds, count, milliseconds(limit), core::ptr::null())
            .unwrap_or_else(|| next(fds, count, limit));
        note_poll(answered, fds, count, milliseconds(limit), core::ptr::null());
        answered
    }
}

/// # Safety
/// The requirements of poll(2); `room` is the array's length in bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: c_int,
    room: usize,
) -> c_int {
    // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
    // arguments are the program's own, unchanged.
    unsafe {
        let next = core::mem::transmute::<*mut core::ffi::c_void, PollChk>(POLL_CHK.function());
        let answered = poll_with_bell(fds, count, milliseconds(limit), core::ptr::null())
            .unwrap_or_else(|| next(fds, count, limit, room));
        note_poll(answered, fds, count, milliseconds(limit), core::ptr::null());
        answered
    }
}

/// # Safety
/// The requirements of ppoll(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
    // arguments are the program's own, unchanged.
    unsafe {
        let next = core::mem::transmute::<*mut core::ffi::c_void, Ppoll>(PPOLL.function());
        let with_bell = || poll_with_bell(fds, count, time(limit), mask);
        let answered = is_valid(limit).then(with_bell).flatten();
        let answered = answered.unwrap_or_else(|| next(fds, count, limit, mask));
        if answered > 0 {
            note_poll(answered, fds, count, time(limit), mask);
        }
        answered
    }
}

/// # Safety
/// The requirements of ppoll(2); `room` is the array's length in bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    // SAFETY: the transmuted pointer is the C library's function of this name, so its type is right; the
    // arguments are the program's own, unchanged.
    unsafe {
        let next = core::mem::transmute::<*mut core::ffi::c_void, PpollChk>(PPOLL_CHK.function());
        let with_bell = || poll_with_bell(fds, count, time(limit), mask);
        let answered = is_valid(limit).then(with_bell).flatten();
        let answered = answered.unwrap_or_else(|| next(fds, count, limit, mask, room));
        if answered > 0 {
            note_poll(answered, fds, count, time(limit), mask);
        }
        answered
    }
}

/// As many descriptors as select() supports, one bit each. Queries of programs with larger sets are not
/// noted.
const WORDS: usize = 1024 / 64;
type Bits = [u64; WORDS];

/// The query of a select() call. select() overwrites it with the answer.
struct Question {
    sets: [Bits; 3],
    limit: Option<Duration>,
}

/// # Safety
/// Each set is null, or has `count` bits.
unsafe fn question(
    count: c_int,
    sets: [*const fd_set; 3],
    limit: impl FnOnce() -> Option<Duration>,
) -> Option<Question> {
    role()?.accepting.as_ref()?;
    let count = usize::try_from(count).ok()?;
    // SAFETY: the caller guarantees that each set is null or has `count` bits.
    let read = unsafe { bits(sets[0], count) }?;
    if !descriptors(&read).any(hold::is_listener) {
        return None;
    }
    // SAFETY: the caller guarantees that each set is null or has `count` bits.
    let sets = unsafe { [read, bits(sets[1], count)?, bits(sets[2], count)?] };
    Some(Question { sets, limit: limit() })
}

/// # Safety
/// The set is null, or has `count` bits.
unsafe fn bits(set: *const fd_set, count: usize) -> Option<Bits> {
    let mut bits = [0; WORDS];
    if set.is_null() {
        return Some(bits);
    }
    if set.addr() < LOWEST || count > WORDS * 64 {
        return None;
    }
    for (place, word) in bits.iter_mut().take(count.div_ceil(64)).enumerate() {
        // SAFETY: the caller guarantees that the set has `count` bits, and `place` is below the number of
        // words that hold them. The kernel, too, reads and writes whole words.
        *word = unsafe { set.cast::<u64>().add(place).read_unaligned() };
    }
    if let Some(last) = bits.get_mut(count / 64) {
        *last &= (1_u64 << (count % 64)) - 1;
    }
    Some(bits)
}

fn descriptors(bits: &Bits) -> impl Iterator<Item = c_int> + '_ {
    bits.iter().enumerate().flat_map(|(place, word)| {
        (0..64)
            .filter(move |bit| word & (1 << bit) != 0)
            .filter_map(move |bit| c_int::try_from(place * 64 + bit).ok())
    })
}

/// Makes the call, and notes the query and its answer.
///
/// # Safety
/// The sets are as select(2) requires; `mask` is null or points to a set.
unsafe fn ask(
    count: c_int,
    sets: [*const fd_set; 3],
    limit: impl FnOnce() -> Option<Duration>,
    mask: *const sigset_t,
    select: impl FnOnce() -> c_int,
) -> c_int {
    let mut asked = None;
    let before = || {
        // SAFETY: the caller guarantees, as select(2) requires, that each set is null or has `count` bits.
        asked = unsafe { question(count, sets, limit) };
        None
    };
    answer(before, || 0_i32);
    let answered = select();
    let Some(asked) = asked.filter(|_| answered > 0) else { return answered };
    let after = || {
        // SAFETY: the caller guarantees, as select(2) requires, that each set is null or has `count` bits;
        // the kernel has just written the answer to them.
        let readable = unsafe { bits(sets[0], usize::try_from(count).ok()?) }?;
        if descriptors(&readable).any(hold::is_listener) {
            // How select() defines readable, writable and exceptional (fs/select.c).
            const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
            let all = asked.sets.iter().zip(EVENTS).flat_map(|(set, events)| {
                descriptors(set).map(move |fd| Asked {
                    fd,
                    events,
                    answered: events == libc::POLLIN && descriptors(&readable).any(|told| told == fd),
                })
            });
            // SAFETY: the caller guarantees that `mask` is null or points to a set.
            hold::remember(all, asked.limit, unsafe { blocked(mask) });
        }
        None
    };
    answer(after, || 0_i32);
    answered
}

/// # Safety
/// The requirements of select(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: *mut timeval,
) -> c_int {
    // SAFETY: the caller guarantees, as select(2) requires, that `limit` is null or points to a time.
    let length = || unsafe { limit.as_ref() }.and_then(|limit| length(limit.tv_sec, limit.tv_usec * 1000));
    // SAFETY: the sets are as select(2) requires, which the caller guarantees. The transmuted pointer is the
    // C library's function of this name, so its type is right.
    unsafe {
        ask(count, [read, write, except], length, core::ptr::null(), || {
            let next = core::mem::transmute::<*mut core::ffi::c_void, Select>(SELECT.function());
            let with_bell = || select_with_bell(count, [read, write, except], length(), core::ptr::null());
            let rung = (limit.is_null() || length().is_some()).then(with_bell).flatten();
            let Some((answered, left)) = rung else { return next(count, read, write, except, limit) };
            if let (Some(limit), Some(left)) = (limit.as_mut(), left) {
                // As Linux does (select(2)).
                limit.tv_sec = c_long::try_from(left.as_secs()).unwrap_or(c_long::MAX);
                limit.tv_usec = left.subsec_micros().into();
            }
            answered
        })
    }
}

/// # Safety
/// The requirements of pselect(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller guarantees, as pselect(2) requires, that `limit` is null or points to a time.
    let length = || unsafe { time(limit) };
    // SAFETY: the sets and `mask` are as pselect(2) requires, which the caller guarantees. The transmuted
    // pointer is the C library's function of this name, so its type is right.
    unsafe {
        ask(count, [read, write, except], length, mask, || {
            let next = core::mem::transmute::<*mut core::ffi::c_void, Pselect>(PSELECT.function());
            let with_bell = || select_with_bell(count, [read, write, except], length(), mask);
            let rung = is_valid(limit).then(with_bell).flatten();
            rung.map_or_else(|| next(count, read, write, except, limit, mask), |(answered, _)| answered)
        })
    }
}
