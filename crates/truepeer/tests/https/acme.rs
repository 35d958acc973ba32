//! Certificates from an ACME authority: Let's Encrypt's own test server, with its faults.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, skip, workspace_dir};

use crate::authority::Authority;
use crate::kit::curl;

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work)
            .needs_program("nginx")
            .needs_program("openssl")
            .time_limit(Duration::from_secs(180))
    };
    vec![
        test("a_certificate_is_issued_by_http", |bed| issued(bed, true)),
        test("a_certificate_is_issued_by_tls", |bed| issued(bed, false)),
        test("a_certificate_is_renewed_without_a_failed_handshake", renewed),
        test("an_authority_that_is_down_is_asked_again_and_the_certificate_stays", down),
        test("an_authority_that_is_down_for_a_day_or_limits_orders_costs_no_handshake", day)
            .needs_program("cc"),
        test("a_clock_that_is_wrong_costs_no_handshake_and_few_orders", wrong_clock).needs_program("cc"),
        test("an_external_account_is_bound", external),
        test("what_the_authority_refuses_is_explained", explained),
        test("sites_get_certificates_of_their_own_by_reload", reloaded),
    ]
}

const HERE: &str = "127.0.0.1:443";
const DIRECTORY: &str = "https://127.0.0.1:14000/dir";

/// Pebble, an origin, and names that lead here.
struct Stand<'a> {
    bed: &'a Bed,
    /// What signs the certificate of Pebble's own server.
    authority: Authority,
    config: String,
    _names: Running,
    _origin: Running,
}

fn tool(name: &str) -> PathBuf {
    workspace_dir().join("target/tools/pebble").join(name)
}

impl<'a> Stand<'a> {
    /// `more`: keys of Pebble's configuration.
    fn new(bed: &'a Bed, more: &str) -> anyhow::Result<Self> {
        if !tool("pebble").exists() {
            return skip("Pebble is not built (make pebble, with Go)");
        }
        let authority = Authority::new(bed, "authority")?;
        let identity = authority.certify(bed, "pebble", &["127.0.0.1"])?;
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
            "certificate": "{}", "privateKey": "{}", "httpPort": 80, "tlsPort": 443, "ocspResponderURL": "",
            {more} "retryAfter": {{"authz": 1, "order": 1}}}}}}"#,
            identity.cert, identity.key
        );
        let names = Program::new(tool("pebble-challtestsrv"))
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", "127.0.0.1:8053"])
            .args([
                "-http01",
                "",
                "-https01",
                "",
                "-tlsalpn01",
                "",
                "-doh",
                "",
                "-management",
                "127.0.0.1:8055",
            ])
            .start(bed)?;
        names.wait_listening("127.0.0.1:8055")?;
        let origin =
            Nginx::default().server("127.0.0.1:8080", "", "location / { return 200 fine; }").start(bed)?;
        Ok(Self { bed, authority, config, _names: names, _origin: origin })
    }

    /// Starts Pebble. `rejects`: of a hundred nonces that are good.
    fn pebble(&self, rejects: usize) -> anyhow::Result<Running> {
        self.pebble_at("127.0.0.1:14000", rejects)
    }

    fn pebble_at(&self, address: &str, rejects: usize) -> anyhow::Result<Running> {
        let file = self.bed.write("pebble.json", &self.config)?;
        let pebble = Program::new("env")
            .arg(format!("PEBBLE_WFE_NONCEREJECT={rejects}"))
            .args(["PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0"])
            .arg(tool("pebble"))
            .args(["-dnsserver", "127.0.0.1:8053", "-config"])
            .arg(file)
            .start(self.bed)?;
        pebble.wait_listening(address)?;
        pebble.wait_listening("127.0.0.1:15000")?;
        Ok(pebble)
    }

    fn truepeer(&self, names: &str, options: &[&str]) -> anyhow::Result<Running> {
        self.truepeer_with(names, options, |program| program)
    }

    fn truepeer_with(
        &self,
        names: &str,
        options: &[&str],
        adjust: impl FnOnce(Program) -> Program,
    ) -> anyhow::Result<Running> {
        let program = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["https", "--workers", "1"]);
        Truepeer::of(program)
            .with(adjust)
            .listen(HERE)
            .option("--origin", "http://127.0.0.1:8080")
            .option("--acme", names)
            .option("--acme-directory", DIRECTORY)
            .option("--acme-ca", &self.authority.ca)
            .option("--acme-state", self.state().display())
            .args(options)
            .start(self.bed)
    }

    fn state(&self) -> PathBuf {
        self.bed.dir().join("state")
    }

    /// The root of the certificates that Pebble issues.
    fn root(&self) -> anyhow::Result<String> {
        let root = Program::new("curl")
            .args(["--silent", "--fail", "--cacert", &self.authority.ca, "https://127.0.0.1:15000/roots/0"])
            .run(self.bed)?;
        Ok(self.bed.write("root.pem", root)?.to_string_lossy().into_owned())
    }

    /// See [`ask`].
    fn ask(&self, root: &str, name: &str) -> anyhow::Result<String> {
        ask(self.bed, root, name)
    }
}

/// Asks as a client that trusts this root.
fn ask(bed: &Bed, root: &str, name: &str) -> anyhow::Result<String> {
    let to = format!("{name}:443:127.0.0.1");
    let args = ["--silent", "--show-error", "--max-time", "20", "--cacert", root, "--resolve", &to];
    Program::new("curl").args(args).arg(format!("https://{name}/")).run(bed)
}

fn issued(bed: &Bed, by_http: bool) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "")?;
    let pebble = stand.pebble(20)?;
    let options: &[&str] = if by_http { &["--listen-http", "127.0.0.1:80"] } else { &[] };
    let truepeer = stand.truepeer("a.test,www.a.test", options)?;
    // Until there is one, handshakes fail, and the log says why.
    truepeer.wait_for_log("acme: a new certificate for a.test, www.a.test")?;
    let root = stand.root()?;
    for name in ["a.test", "www.a.test"] {
        let said = stand.ask(&root, name)?;
        ensure!(said == "fine", "{name}: {said}; {}", truepeer.log());
    }
    ensure!(pebble.log().contains("validate w/ HTTP") == by_http, "{}", pebble.log());
    if by_http {
        let other =
            curl(&["-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1/.well-known/acme-challenge/x"]);
        ensure!(other.run(bed)? == "308", "the answers end with the order");
    } else {
        // The same handshake by a stranger, and one by a client that knows the protocol among others.
        let offer = |protocols: &str| {
            let asked = ["s_client", "-connect", HERE, "-servername", "a.test", "-alpn", protocols];
            Program::new("openssl").args(asked).input("").run(bed)
        };
        ensure!(offer("acme-tls/1").is_err(), "{}", truepeer.log());
        let said = offer("acme-tls/1,http/1.1")?;
        ensure!(said.contains("ALPN protocol: http/1.1"), "{said}");
    }
    // The next start has it at once, without the authority, and for its owner alone.
    drop(pebble);
    drop(truepeer);
    let truepeer = stand.truepeer("a.test,www.a.test", options)?;
    ensure!(stand.ask(&root, "a.test")? == "fine", "{}", truepeer.log());
    let modes = Program::new("sh").args(["-c", "stat -c '%a %n' state state/*"]).run(bed)?;
    for line in modes.lines() {
        ensure!(line.starts_with(if line.ends_with(" state") { "700 " } else { "600 " }), "{modes}");
    }
    ensure!(modes.lines().count() == 4, "an account, a certificate and a lock: {modes}");
    Ok(())
}

/// A client asks again and again, while certificates live for 12 seconds.
fn renewed(bed: &Bed) -> anyhow::Result<()> {
    let stand =
        Stand::new(bed, r#""profiles": {"default": {"description": "short", "validityPeriod": 12}},"#)?;
    let _pebble = stand.pebble(20)?;
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:80"])?;
    truepeer.wait_for_log("acme: a new certificate")?;
    let root = stand.root()?;
    let renewals = || truepeer.log().matches("acme: a new certificate").count();
    let mut asked = 0;
    truepeer.wait_state("three renewals", || {
        renewals() >= 4 || {
            asked += 1;
            stand.ask(&root, "a.test").is_err()
        }
    })?;
    ensure!(renewals() >= 4, "request {asked} met a certificate that is over: {}", truepeer.log());
    ensure!(stand.ask(&root, "a.test")? == "fine");
    Ok(())
}

fn down(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "")?;
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:80"])?;
    truepeer.wait_for_log("can't reach 127.0.0.1")?;
    truepeer.wait_for_log("there is none")?;
    let refused = curl(&["--resolve", "a.test:443:127.0.0.1", "https://a.test/"]).run(bed);
    ensure!(refused.is_err(), "there is no certificate: {refused:?}");
    truepeer.wait_for_log("truepeer has no certificate yet")?;
    // All else is served meanwhile.
    let redirect =
        curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: a.test", "http://127.0.0.1/"]);
    ensure!(redirect.run(bed)? == "308");
    // The authority is there again: a reload does not wait for the next attempt's time, nor does a start.
    drop(truepeer);
    let _pebble = stand.pebble(0)?;
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:80"])?;
    truepeer.wait_for_log("acme: a new certificate")?;
    let root = stand.root()?;
    ensure!(stand.ask(&root, "a.test")? == "fine");
    Ok(())
}

fn external(bed: &Bed) -> anyhow::Result<()> {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let more =
        format!(r#""externalAccountBindingRequired": true, "externalAccountMACKeys": {{"kid-1": "{key}"}},"#);
    let stand = Stand::new(bed, &more)?;
    let _pebble = stand.pebble(0)?;
    let http = ["--listen-http", "127.0.0.1:80"];
    let truepeer = stand.truepeer("a.test", &http)?;
    truepeer.wait_for_log("it wants an account of its own first: eab-id and eab-key")?;
    drop(truepeer);
    let file = bed.write("eab.key", format!("{key}\n"))?.to_string_lossy().into_owned();
    let truepeer = stand
        .truepeer("a.test", &[&http[..], &["--acme-eab-id", "kid-1", "--acme-eab-key", &file]].concat())?;
    truepeer.wait_for_log("acme: a new certificate")
}

fn explained(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, r#""domainBlocklist": ["blocked.test"],"#)?;
    let _pebble = stand.pebble(0)?;
    let http = ["--listen-http", "127.0.0.1:80"];
    let truepeer = stand.truepeer("blocked.test", &http)?;
    truepeer.wait_for_log("it certifies no such name")?;
    drop(truepeer);
    // It asks by port 80, where nobody listens.
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:81"])?;
    truepeer.wait_for_log("a.test: the authority could not check it")?;
    truepeer.wait_for_log("its port 80 (http-01) can be reached")?;
    truepeer.wait_for_log("tried again in 60 s")?;
    Ok(())
}

fn reloaded(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "")?;
    let _pebble = stand.pebble(0)?;
    let site = |name: &str| {
        format!(
            "[[https]]\nlisten = \"{HERE}\"\nlisten-http = \"127.0.0.1:80\"\n\
             origin = \"http://127.0.0.1:8080\"\nacme = \"{name}\"\n"
        )
    };
    let table = format!(
        "[acme]\ndirectory = \"{DIRECTORY}\"\nca = \"{}\"\nstate = \"./state\"\nemail = \"admin@a.test\"\n",
        stand.authority.ca
    );
    let file = bed.write("truepeer.toml", format!("{table}{}", site("a.test")))?;
    let truepeer = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["serve", "-c"]).arg(file).start(bed)?;
    truepeer.wait_for_log("acme: a new certificate for a.test")?;
    let root = stand.root()?;
    ensure!(stand.ask(&root, "a.test")? == "fine", "{}", truepeer.log());
    bed.write("truepeer.toml", format!("{table}{}{}", site("a.test"), site("b.test")))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("acme: a new certificate for b.test")?;
    for name in ["a.test", "b.test"] {
        ensure!(stand.ask(&root, name)? == "fine", "{name}: {}", truepeer.log());
    }
    ensure!(truepeer.log().matches("a new certificate for a.test").count() == 1, "{}", truepeer.log());
    Ok(())
}

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

/// Adds the seconds in $CLOCK to the clock of its program. The thread `acme` sleeps by that clock, too: it
/// looks every 20 ms whether its time is over.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *ahead;
static int (*real_clock)(clockid_t, struct timespec *);
static long (*real_syscall)(long, ...);
static __thread int is_acme;
/// The steady clock of that thread never goes back, and moves only while the thread sleeps: a request that is
/// under way must not run out of time.
static __thread long seen, steady;
__attribute__((constructor)) static void start(void) {
  real_clock = dlsym(RTLD_NEXT, "clock_gettime");
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  int file = open(getenv("CLOCK"), O_RDONLY | O_CLOEXEC);
  ahead = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  close(file);
}
int pthread_setname_np(pthread_t thread, const char *name) {
  int (*real)(pthread_t, const char *) = dlsym(RTLD_NEXT, "pthread_setname_np");
  is_acme = strcmp(name, "acme") == 0;
  return real(thread, name);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real_clock) return syscall(SYS_clock_gettime, clock, now);
  int result = real_clock(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += *ahead;
  if (result == 0 && clock == CLOCK_MONOTONIC && is_acme) now->tv_sec += steady;
  return result;
}
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  if (!real_syscall) real_syscall = dlsym(RTLD_NEXT, "syscall");
  const struct timespec *until = (void *)a[3];
  if (number != SYS_futex || !is_acme || (a[1] & 127) != FUTEX_WAIT_BITSET || !until)
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  for (;;) {
    struct timespec now;
    long to = *ahead;
    if (to > seen) steady += to - seen;
    seen = to;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) {
      errno = ETIMEDOUT;
      return -1;
    }
    real_clock(CLOCK_MONOTONIC, &now);
    if ((now.tv_nsec += 20000000) >= 1000000000) { now.tv_nsec -= 1000000000; now.tv_sec++; }
    long result = real_syscall(SYS_futex, a[0], a[1], a[2], (long)&now, a[4], a[5]);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}
"#;

/// The clock of a program that is started with [`Clock::of`].
struct Clock {
    library: PathBuf,
    path: PathBuf,
    file: fs::File,
}

impl Clock {
    fn new(bed: &Bed) -> anyhow::Result<Self> {
        let (source, library) = (bed.write("clock.c", CLOCK)?, bed.dir().join("clock.so"));
        let compiler = Program::new("cc").args(["-shared", "-fPIC", "-O", "-o"]).arg(&library);
        compiler.arg(&source).args(["-ldl", "-pthread"]).run(bed)?;
        let path = bed.write("clock", 0i64.to_ne_bytes())?;
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        Ok(Self { library, path, file })
    }

    fn of(&self, program: Program) -> Program {
        program.env("LD_PRELOAD", &self.library).env("CLOCK", &self.path)
    }

    /// Sets it: so many seconds from the host's clock.
    fn set(&self, ahead: i64) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(&ahead.to_ne_bytes(), 0)?)
    }
}

/// Pebble behind NGINX, which can be away and refuses orders on demand; truepeer, whose clock is ours; and a
/// client that asks again and again.
struct Trial<'a> {
    stand: Stand<'a>,
    clock: Clock,
    pebble: Running,
    front: Nginx,
    truepeer: Running,
    root: String,
}

impl<'a> Trial<'a> {
    fn new(bed: &'a Bed) -> anyhow::Result<(Self, Running)> {
        let mut stand = Stand::new(bed, "")?;
        stand.config = stand.config.replace("127.0.0.1:14000", "127.0.0.1:14010");
        let pebble = stand.pebble_at("127.0.0.1:14010", 20)?;
        let identity = stand.authority.certify(bed, "front", &["127.0.0.1"])?;
        let pass = "proxy_pass https://127.0.0.1:14010; proxy_set_header Host $http_host;";
        let refused = r#"{"type": "urn:ietf:params:acme:error:rateLimited", "detail": "so many"}"#;
        let front = Nginx::default().server(
            "127.0.0.1:14000",
            "ssl",
            &format!(
                "ssl_certificate {}; ssl_certificate_key {}; default_type application/problem+json;
                location / {{ {pass} }}
                location = /order-plz {{
                    if (-f {}) {{ add_header Retry-After 7200 always; return 429 '{refused}'; }}
                    {pass}
                }}",
                identity.cert,
                identity.key,
                bed.dir().join("limited").display()
            ),
        );
        let running = front.start(bed)?;
        let clock = Clock::new(bed)?;
        let http = ["--listen-http", "127.0.0.1:80"];
        let truepeer = stand.truepeer_with("a.test", &http, |program| clock.of(program))?;
        truepeer.wait_for_log("acme: a new certificate")?;
        let root = stand.root()?;
        Ok((Self { stand, clock, pebble, front, truepeer, root }, running))
    }

    /// Does `work` while a client asks. No request fails.
    fn with_client(&self, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (bed, root) = (self.stand.bed, &*self.root);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| -> anyhow::Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    let said = ask(bed, root, "a.test")?;
                    ensure!(said == "fine", "{said}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            let asked = client.join().map_err(|_| anyhow::anyhow!("the client has ended"))?;
            done.and(asked).with_context(|| self.truepeer.log())
        })?;
        println!("{} requests, none failed", answered.load(Ordering::Relaxed));
        ensure!(answered.load(Ordering::Relaxed) > 10);
        Ok(())
    }

    fn orders(&self) -> usize {
        self.truepeer.log().matches("acme: a new certificate").count()
    }

    fn failures(&self) -> usize {
        self.truepeer.log().matches("acme: no new certificate").count()
    }

    /// Pebble answers so when it is asked for the window of the certificate that is kept: hours from the
    /// host's clock.
    fn suggest(&self, from: i64, until: i64) -> anyhow::Result<()> {
        let state = fs::read_dir(self.stand.state())?.filter_map(Result::ok).map(|entry| entry.path());
        let path = state.into_iter().find(|path| path.extension().is_some_and(|end| end == "pem"));
        let pem = fs::read_to_string(path.context("no certificate is kept")?)?;
        let leaf = pem.split_once("-----BEGIN CERTIFICATE").context("no certificate")?.1;
        let leaf = leaf.split_once("-----END").context("no end")?.0;
        let leaf = format!("-----BEGIN CERTIFICATE{leaf}-----END CERTIFICATE-----\n");
        let time = |hours: i64| {
            let date =
                Program::new("date").args(["-u", "-d", &format!("{hours} hours"), "+%Y-%m-%dT%H:%M:%SZ"]);
            date.run(self.stand.bed).map(|date| date.trim().to_owned())
        };
        let window =
            format!(r#"{{"suggestedWindow": {{"start": "{}", "end": "{}"}}}}"#, time(from)?, time(until)?);
        let body = serde_json::json!({ "certificate": leaf, "ariResponse": window }).to_string();
        Program::new("curl")
            .args(["--silent", "--fail", "--cacert", &self.stand.authority.ca, "--data", &body])
            .arg("https://127.0.0.1:15000/set-renewal-info/")
            .run(self.stand.bed)
            .map(drop)
    }

    /// The certificate that is served is valid by truepeer's clock.
    fn is_valid(&self, ahead: u64) -> anyhow::Result<()> {
        let shown = Program::new("openssl").args(["s_client", "-connect", HERE, "-servername", "a.test"]);
        let shown = shown.input("").run(self.stand.bed)?;
        let check = Program::new("openssl").args(["x509", "-noout", "-checkend", &ahead.to_string()]);
        check.input(shown).run(self.stand.bed).map(drop)
    }
}

fn day(bed: &Bed) -> anyhow::Result<()> {
    let (trial, front) = Trial::new(bed)?;
    let Trial { clock, truepeer, .. } = &trial;
    let ahead = |hours: u64| clock.set((hours * HOUR).cast_signed());
    trial.with_client(|| {
        // The authority wants it to be renewed tomorrow, long before two thirds of its life.
        trial.suggest(24, 25)?;
        ahead(7)?;
        truepeer.wait_for_log("the authority suggests when to renew the certificate for a.test")?;
        drop(front);
        ahead(26)?;
        truepeer.wait_state("a failure", || trial.failures() > 0)?;
        for hours in 27..=50 {
            ahead(hours)?;
            trial.is_valid(hours * HOUR)?;
        }
        let failures = trial.failures();
        ensure!((2..12).contains(&failures), "{failures} attempts in a day");
        let front = trial.front.start(bed)?;
        ahead(57)?;
        truepeer.wait_state("the second certificate", || trial.orders() == 2)?;
        ensure!(trial.pebble.log().contains("is a replacement of"), "{}", trial.pebble.log());
        // It is to be renewed at once, and the authority has had too many orders.
        let limited = bed.write("limited", "")?;
        trial.suggest(-2, -1)?;
        ahead(64)?;
        truepeer.wait_for_log("rateLimited")?;
        truepeer.wait_for_log("tried again in 7200 s")?;
        fs::remove_file(limited)?;
        let failures = trial.failures();
        ahead(65)?;
        trial.is_valid(65 * HOUR)?;
        ensure!((trial.orders(), trial.failures()) == (2, failures), "it was asked to wait");
        ahead(67)?;
        truepeer.wait_state("the third certificate", || trial.orders() == 3)?;
        trial.is_valid(67 * HOUR)?;
        drop(front);
        Ok(())
    })
}

fn wrong_clock(bed: &Bed) -> anyhow::Result<()> {
    let (trial, _front) = Trial::new(bed)?;
    let Trial { clock, truepeer, .. } = &trial;
    let ahead = |days: i64| clock.set(days * DAY.cast_signed());
    let ordered = || trial.pebble.log().matches("POST /order-plz").count();
    trial.with_client(|| {
        let before = ordered();
        // By that clock it is due, and so is each new one.
        ahead(80)?;
        truepeer.wait_for_log("is due for renewal at once: check this host's clock")?;
        ahead(100)?;
        truepeer.wait_state("another attempt", || {
            truepeer.log().matches("check this host's clock").count() >= 2
        })?;
        ahead(-40)?;
        trial.is_valid(0)?;
        ahead(0)?;
        trial.is_valid(0)?;
        let attempts = ordered() - before;
        ensure!(attempts < 12, "{attempts} orders, nonces that were refused among them");
        // All is well again.
        let orders = trial.orders();
        trial.suggest(-2, -1)?;
        clock.set(7 * HOUR.cast_signed())?;
        truepeer.wait_state("one more certificate", || trial.orders() > orders)?;
        Ok(())
    })
}
