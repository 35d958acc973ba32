//! The keeper opens the listening sockets of its process.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, listen,
    sendmsg, socket, sockopt,
};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_sys::socket::local_address;
use truepeer_testbed::{Bed, Behaviour, Program, Test, tests};

use crate::owners::{BACKENDS, asks_for, keeper_of, line_of, rule};
use crate::support::{TRUEPEER, delivers_both, proxy, state};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![without_its_keeper_a_reload_opens_no_listener];
    all.push(
        Test::new("nobody_listens_beside_another_program_by_its_keeper", nobody_listens_beside)
            .needs_several_users(),
    );
    all
}

fn without_its_keeper_a_reload_opens_no_listener(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let config = |listen: &str| {
        format!(
            "[[proxy]]\nlisten = [{listen}]\nipv4 = \"127.0.0.1:80\"\nipv6 = \"[::1]:80\"\nroutes = \"auto\"\nallow = [\"loopback\"]\n"
        )
    };
    let file = bed.write("truepeer.toml", config("\"127.0.0.1:8443\""))?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c"]).arg(file).start(bed)?;
    truepeer.wait_listening("127.0.0.1:8443")?;
    bed.write("truepeer.toml", config("\"127.0.0.1:8443\", \"127.0.0.1:843\""))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_listening("127.0.0.1:843")?;
    let keeper = Pid::from_raw(keeper_of(&truepeer)?).context("0")?;
    kill_process(keeper, Signal::KILL)?;
    truepeer.wait_for_log("has ended by itself")?;
    bed.write("truepeer.toml", config("\"127.0.0.1:8443\", \"127.0.0.1:844\""))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("not reloaded, everything stays as it was")?;
    truepeer.wait_for_log("127.0.0.1:844: asking for a listening socket failed")?;
    truepeer.wait_for_log("restart truepeer")?;
    delivers_both("127.0.0.1:8443")?;
    delivers_both("127.0.0.1:843")
}

/// By the socket of the running process, as an attacker would who has taken it over. listen(2) itself fails
/// there.
fn nobody_listens_beside(bed: &Bed) -> Result<()> {
    let victim = TcpListener::bind("127.0.0.1:0")?;
    let taken = victim.local_addr()?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    // It has read the keeper's answers to its own orders.
    truepeer.wait_for_log("confined: ")?;
    let line = line_of(&truepeer)?;
    // Stopped, so that it doesn't read the answers itself.
    truepeer.signal(Signal::STOP)?;
    let in_use = format!("\"errno\":{}", Errno::ADDRINUSE.raw_os_error());
    for ip in ["127.0.0.1", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]"] {
        for options in [[false, false, false], [true, false, false], [true, true, false]] {
            let answer = answer_to_listen(&line, &format!("{ip}:{}", taken.port()), options)?;
            ensure!(answer.contains(&in_use), "{ip}, {options:?}: {answer}");
        }
    }
    let answer = answer_to_listen(&line, "127.0.0.1:8444", [false; 3])?;
    ensure!(answer.contains("\"done\""), "a free port: {answer}");
    truepeer.signal(Signal::CONT)?;
    let shared = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    send(&line, &format!("{{\"share\":{{\"address\":\"{taken}\"}}}}"), &[shared.as_fd()])?;
    send(&line, "{\"listen-locally\":{\"backlog\":9}}", &[shared.as_fd()])?;
    // This one it could want: so it has answered the others.
    rustix::net::send(&line, asks_for(&rule("[\"192.0.2.1\",32]", 123)).as_bytes(), SendFlags::NOSIGNAL)?;
    bed.wait_for("a rule", || state(bed).is_ok_and(|now| now.contains("from 192.0.2.1 ")))?;
    ensure!(local_address(shared.as_fd())? == taken, "not shared: {}", truepeer.log());
    ensure!(!sockopt::socket_acceptconn(&shared)?, "the keeper listens on a socket of others");
    ensure!(listen(&shared, 9) == Err(Errno::ADDRINUSE), "a socket that it has shared may listen");
    ensure!(listeners_at(bed, taken.port())? == 1, "the keeper listens beside another program");
    truepeer.stop().map(drop)
}

fn listeners_at(bed: &Bed, port: u16) -> Result<usize> {
    let found = Program::new("ss").args(["-Hltn", &format!("sport = :{port}")]).run(bed)?;
    Ok(found.lines().count())
}

/// Asks the keeper for a listening socket, and reads its answer. `options`: `reuse_port`, `transparent`,
/// `v6_only`.
fn answer_to_listen(line: &OwnedFd, address: &str, options: [bool; 3]) -> Result<String> {
    let [reuse_port, transparent, v6_only] = options;
    let body = format!(
        "{{\"listen\":{{\"address\":\"{address}\",\"reuse_port\":{reuse_port},\
         \"transparent\":{transparent},\"v6_only\":{v6_only}}}}}"
    );
    send(line, &body, &[])?;
    let mut answer = [0; 1000];
    let (len, _) = rustix::net::recv(line, &mut answer, RecvFlags::empty())?;
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}

fn send(line: &OwnedFd, body: &str, sockets: &[BorrowedFd<'_>]) -> Result<()> {
    let message = format!("{{\"number\":4000000000,\"body\":{body}}}");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(sockets.is_empty() || control.push(SendAncillaryMessage::ScmRights(sockets)));
    sendmsg(line, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
