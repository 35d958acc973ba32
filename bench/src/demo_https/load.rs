//! The load: this program again, so that it can run in a namespace and on VPP. It uses the event loop of
//! truepeer's HTTPS proxy, whose system calls go through libc, so that a preloaded network stack can take
//! them over. `bench`'s own loads don't allow that.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use httparse::{EMPTY_HEADER, Response, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use truepeer_session::connect_as::Upstream;
use truepeer_stream::reactor::{Reactor, TcpStream, connect};
use truepeer_stream::tls::{ClientOptions, ClientTls, MinVersion, TlsStream, Trust};

use super::args::LoadArgs;
use super::report::{self, DemoReport};
use super::tally::LoadTally;
use super::words::{AS_LOAD, PAGE, WHO};
use crate::credentials::HOST;
use crate::measure::latency;

/// How often the number of answered requests is recorded.
const TICK: Duration = Duration::from_millis(100);
/// The time-out for connecting and for the requests before the measurement.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The size of a read.
const PIECE_BYTES: usize = 16 << 10;
const FIELDS_MAX: usize = 64;

#[derive(Debug, Parser)]
struct Args {
    to: SocketAddr,
    certificate: PathBuf,
    #[command(flatten)]
    load: LoadArgs,
}

/// If this process was started as the load, runs it to its end.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let program = words.next();
    if words.next().is_none_or(|word| word != AS_LOAD) {
        return None;
    }
    let args = Args::parse_from(program.into_iter().chain(words));
    Some(match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// The data that each thread needs.
struct Plan {
    to: SocketAddr,
    tls: ClientTls,
    warm_up: Duration,
    duration: Duration,
    /// The interval between the requests of a connection; `None`: as soon as the answer has arrived.
    interval: Option<Duration>,
}

/// Prints the results. Returns whether all went well.
fn run(args: &Args) -> anyhow::Result<bool> {
    let options = ClientOptions {
        trust: Trust::File(args.certificate.clone()),
        name: HOST.to_owned(),
        min_version: MinVersion::Tls13,
        suites: vec!["TLS_AES_128_GCM_SHA256".parse().map_err(anyhow::Error::msg)?],
        alpn: vec![b"http/1.1".to_vec()],
        identity: None,
    };
    let (threads, connections) = (args.load.threads.get(), args.load.connections.get());
    let interval = args.load.rate.map(|rate| Duration::from_secs_f64(connections as f64 / rate.get() as f64));
    let plan = Arc::new(Plan {
        to: args.to,
        tls: ClientTls::new(&options)?,
        warm_up: args.load.warm_up,
        duration: args.load.duration,
        interval,
    });
    let begin = Instant::now();
    let url = format!("https://{}{PAGE}", args.to);
    let workers = (0..threads).map(|number| {
        // The first ones have one more if they can't be divided evenly.
        let own = connections / threads + usize::from(number < connections % threads);
        let plan = Arc::clone(&plan);
        thread::Builder::new()
            .name(format!("load-{number}"))
            .spawn(move || work(plan, own))
            .context("a thread")
    });
    let workers: Vec<_> = workers.collect::<anyhow::Result<_>>()?;
    report::begin(&url, threads, connections, args.load.duration, begin.elapsed());
    let tallies = workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a panic"))?);
    let report = DemoReport::of(tallies.collect::<anyhow::Result<Vec<_>>>()?)?;
    print!("{report}");
    if args.load.figures {
        println!("{}", report.figures());
    }
    Ok(report.is_clean())
}

/// One thread, from opening its connections until the time is over.
fn work(plan: Arc<Plan>, connections: usize) -> anyhow::Result<LoadTally> {
    let reactor = Reactor::new()?;
    let inner = reactor.clone();
    reactor.block_on(async move { measure(&inner, plan, connections).await })?
}

async fn measure(reactor: &Reactor, plan: Arc<Plan>, connections: usize) -> anyhow::Result<LoadTally> {
    let mut open = Vec::new();
    let mut tally = LoadTally::new()?;
    for _ in 0..connections {
        open.push(Connection::open_with_retries(reactor, &plan).await?);
    }
    if let Some(first) = open.first_mut() {
        let asked = reactor.timeout(TIMEOUT, first.exchange(WHO));
        asked.await.map_err(|_| anyhow::anyhow!("no answer within {TIMEOUT:?}"))??;
        tally.seen = String::from_utf8_lossy(&first.page).into_owned();
    }
    let (tally, is_over) = (Rc::new(RefCell::new(tally)), Rc::new(Cell::new(false)));
    let start = Instant::now();
    for (number, connection) in open.into_iter().enumerate() {
        let first =
            plan.interval.map(|interval| start + interval.mul_f64(number as f64 / connections as f64));
        let (reactor, tally, is_over) = (reactor.clone(), Rc::clone(&tally), Rc::clone(&is_over));
        let plan = Arc::clone(&plan);
        reactor
            .clone()
            .spawn(async move { ask_on(&reactor, &plan, connection, first, &tally, &is_over).await });
    }
    if !plan.warm_up.is_zero() {
        reactor.sleep(plan.warm_up).await;
        let warm = tally.replace(LoadTally::new()?);
        let mut tally = tally.borrow_mut();
        (tally.seen, tally.cut, tally.first_cut) = (warm.seen, warm.cut, warm.first_cut);
    }
    let start = Instant::now();
    let (mut last, mut before) = (start, 0);
    while start.elapsed() < plan.duration {
        reactor.sleep(TICK.min(plan.duration.saturating_sub(start.elapsed()))).await;
        let (now, mut tally) = (Instant::now(), tally.borrow_mut());
        let rate = (tally.requests - before) as f64 / (now - last).as_secs_f64();
        tally.rates.push(rate);
        (last, before) = (now, tally.requests);
    }
    is_over.set(true);
    let mut tally = tally.replace(LoadTally::new()?);
    tally.elapsed = start.elapsed();
    Ok(tally)
}

/// Sends requests on one connection repeatedly.
async fn ask_on(
    reactor: &Reactor,
    plan: &Plan,
    mut connection: Connection,
    mut due: Option<Instant>,
    tally: &RefCell<LoadTally>,
    is_over: &Cell<bool>,
) {
    loop {
        let since = match due {
            // However late the connection is free, the request is timed from when it was due, as in wrk2.
            Some(time) => {
                let wait = time.saturating_duration_since(Instant::now());
                if !wait.is_zero() {
                    reactor.sleep(wait).await;
                }
                time
            }
            None => Instant::now(),
        };
        let answered = connection.exchange(PAGE).await;
        let mut tally = tally.borrow_mut();
        if is_over.get() {
            return;
        }
        match answered {
            Ok(answer) => {
                tally.requests += 1;
                tally.bytes += answer.bytes;
                tally.refused += u64::from(answer.status != 200);
                latency::record(&mut tally.latencies, since.elapsed());
            }
            Err(error) => {
                tally.cut += 1;
                tally.first_cut.get_or_insert_with(|| format!("{error:#}"));
                return;
            }
        }
        due = due.zip(plan.interval).map(|(time, interval)| time + interval);
    }
}

/// A kept-alive connection.
struct Connection {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
    filled: usize,
    page: Vec<u8>,
}

struct Answer {
    status: u16,
    /// Head and body.
    bytes: u64,
}

impl Connection {
    /// Retries for a while: NGINX on VPP listens some time before its worker serves, and rejects connections
    /// until then.
    async fn open_with_retries(reactor: &Reactor, plan: &Plan) -> anyhow::Result<Self> {
        let begin = Instant::now();
        loop {
            let opening = reactor.timeout(TIMEOUT, Self::open(reactor, plan)).await;
            match opening.map_err(|_| anyhow::anyhow!("no connection within {TIMEOUT:?}"))? {
                Err(_) if begin.elapsed() < TIMEOUT => reactor.sleep(TICK).await,
                opened => return opened,
            }
        }
    }

    async fn open(reactor: &Reactor, plan: &Plan) -> anyhow::Result<Self> {
        let tcp =
            connect(reactor, &Upstream { source: None, backend: plan.to, mark: 0, path_mtu: None }).await?;
        let stream = TlsStream::connect(tcp, plan.tls.config(), plan.tls.name()).await?;
        Ok(Self { stream, buffer: vec![0; PIECE_BYTES], filled: 0, page: Vec::new() })
    }

    /// Requests `path` and reads the whole response. Its body is then in `page`.
    async fn exchange(&mut self, path: &str) -> anyhow::Result<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await.context("write")?;
        self.stream.flush().await.context("write")?;
        loop {
            if let Some((status, head, length)) = parse(&self.buffer[..self.filled])? {
                let end = head + length;
                if self.buffer.len() < end {
                    self.buffer.resize(end, 0);
                }
                while self.filled < end {
                    self.fill().await?;
                }
                self.page.clear();
                self.page.extend_from_slice(&self.buffer[head..end]);
                self.buffer.copy_within(end..self.filled, 0);
                self.filled -= end;
                return Ok(Answer { status, bytes: end as u64 });
            }
            anyhow::ensure!(self.filled < self.buffer.len(), "a head of more than {PIECE_BYTES} bytes");
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        let read = self.stream.read(&mut self.buffer[self.filled..]).await.context("read")?;
        anyhow::ensure!(read > 0, "the connection was closed");
        self.filled += read;
        Ok(())
    }
}

/// Status, length of the head, length of the body; `None`: the head is incomplete.
fn parse(bytes: &[u8]) -> anyhow::Result<Option<(u16, usize, usize)>> {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut response = Response::new(&mut fields);
    let Status::Complete(head) = response.parse(bytes)? else { return Ok(None) };
    let field = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = str::from_utf8(field.context("an answer without a length")?.value)?;
    let length = length.parse().context("a length")?;
    Ok(Some((response.code.unwrap_or_default(), head, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_length() {
        let answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(parse(answer).unwrap(), Some((403, answer.len() - 5, 5)));
        assert_eq!(parse(&answer[..20]).unwrap(), None);
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse(b"nonsense\r\n\r\n").is_err());
    }
}
