//! `--destination header`: the server's own address is the header's destination. `attach` has these, too.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Program, Test, client, ip_here, servers_dir, tests};

use crate::kit::with_destinations;

/// An address of this host that no sender uses: the load balancer's own.
const PUBLIC: &str = "198.51.100.1";
const CLIENT: &str = "203.0.113.7:5000";

pub(crate) fn tests() -> Vec<Test> {
    let mut all = vec![Test::new("java_is_told_the_headers_destination", java).needs_program("java")];
    all.extend(tests![
        vsftpd_offers_data_connections_at_the_headers_destination,
        kamailio_is_told_the_headers_destination
    ]);
    all
}

fn java(bed: &Bed) -> Result<()> {
    let source = "\
public class Server {
  public static void main(String[] args) throws Exception {
    var listener = new java.net.ServerSocket(8080);
    while (true) {
      try (var socket = listener.accept()) {
        socket.getInputStream().readAllBytes();
        var text = socket.getLocalAddress().getHostAddress() + \" \" + socket.getLocalPort() + \" \"
            + socket.getInetAddress().getHostAddress() + \" \" + socket.getPort();
        socket.getOutputStream().write(text.getBytes());
      }
    }
  }
}
";
    let java = Program::new("java").arg(bed.write("Server.java", source)?);
    let _java = with_destinations(bed, java, "8080", &["127.0.0.1:8080"])?;
    for (header, expected) in [
        (client::v2(CLIENT, "192.0.2.1:443")?, "192.0.2.1 443 203.0.113.7 5000"),
        (client::v1(CLIENT, "192.0.2.1:443")?, "192.0.2.1 443 203.0.113.7 5000"),
        (
            client::v2("[2001:db8::7]:5000", "[2001:db8::1]:443")?,
            "2001:db8:0:0:0:0:0:1 443 2001:db8:0:0:0:0:0:7 5000",
        ),
        (client::v2_local(), "127.0.0.1 8080 127.0.0.1 "),
    ] {
        let saw = client::ask(&mut client::connect("127.0.0.1:8080")?, &header)?;
        ensure!(saw.starts_with(expected), "{saw}");
    }
    Ok(())
}

/// A control connection of FTP, behind a load balancer.
struct Ftp {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Ftp {
    fn connect(header: &[u8]) -> Result<Self> {
        let mut stream = client::connect("127.0.0.1:2121")?;
        stream.write_all(header)?;
        let mut ftp = Self { lines: BufReader::new(stream.try_clone()?), stream };
        ftp.expect("220")?;
        Ok(ftp)
    }

    fn expect(&mut self, code: &str) -> Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(line.starts_with(code), "{line:?}, not {code}");
        Ok(line)
    }

    fn say(&mut self, command: &str, code: &str) -> Result<String> {
        write!(self.stream, "{command}\r\n")?;
        self.expect(code).with_context(|| command.to_owned())
    }
}

fn vsftpd_offers_data_connections_at_the_headers_destination(bed: &Bed) -> Result<()> {
    ip_here(&[&format!("address add {PUBLIC}/32 dev lo")])?;
    let root = bed.dir().join("files");
    let empty = bed.dir().join("empty");
    std::fs::create_dir_all(&root)?;
    std::fs::create_dir_all(&empty)?;
    bed.write("files/greeting", "a file behind two connections")?;
    let config = format!(
        "listen=YES\nlisten_port=2121\nbackground=NO\nanonymous_enable=YES\nftp_username=daemon\n\
         anon_root={}\nsecure_chroot_dir={}\npasv_min_port=50000\npasv_max_port=50009\n",
        root.display(),
        empty.display()
    );
    let vsftpd = Program::new("vsftpd").arg(bed.write("vsftpd.conf", config)?);
    let _vsftpd = with_destinations(bed, vsftpd, "2121,50000-50009", &["127.0.0.1:2121"])?;
    let mut ftp = Ftp::connect(&client::v2(CLIENT, format!("{PUBLIC}:21"))?)?;
    ftp.say("USER anonymous", "331")?;
    ftp.say("PASS a@example.org", "230")?;
    let passive = ftp.say("PASV", "227")?;
    let numbers = passive.split(['(', ')']).nth(1).context("no address")?;
    let numbers: Vec<u16> = numbers.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let [198, 51, 100, 1, high, low] = numbers[..] else { anyhow::bail!("{passive}") };
    let port = high << 8 | low;
    // The load balancer brings the client's data connection to the same address and port.
    let mut data = client::connect_from("127.0.0.1:0", format!("{PUBLIC}:{port}"))?;
    data.write_all(&client::v2("203.0.113.7:5001", format!("{PUBLIC}:{port}"))?)?;
    ftp.say("RETR greeting", "150")?;
    let file = client::ask(&mut data, b"")?;
    ensure!(file == "a file behind two connections", "{file:?}");
    ftp.expect("226")?;
    // A sender that stands for itself: the socket's own address.
    let mut own = Ftp::connect(&client::v2_local())?;
    own.say("USER anonymous", "331")?;
    own.say("PASS a@example.org", "230")?;
    let passive = own.say("PASV", "227")?;
    ensure!(passive.contains("(127,0,0,1,"), "{passive}");
    Ok(())
}

/// Over TCP, at 0.0.0.0: it asks the socket for its own address.
fn kamailio_is_told_the_headers_destination(bed: &Bed) -> Result<()> {
    const REQUEST: &[u8] = b"\
OPTIONS sip:a@example.org SIP/2.0\r\n\
Via: SIP/2.0/TCP 203.0.113.7:5000;branch=z9hG4bK7;rport\r\n\
From: <sip:b@example.org>;tag=1\r\n\
To: <sip:a@example.org>\r\n\
Call-ID: 1\r\n\
CSeq: 1 OPTIONS\r\n\
Max-Forwards: 70\r\n\
Content-Length: 0\r\n\
\r\n";
    let modules =
        servers_dir().join(format!("root/usr/lib/{}-linux-gnu/kamailio/modules", std::env::consts::ARCH));
    let config = format!(
        "#!KAMAILIO\nlog_stderror=yes\nchildren=1\ntcp_children=1\nlisten=tcp:0.0.0.0:5060\nmpath=\"{}/\"\n\
         loadmodule \"sl.so\"\nloadmodule \"pv.so\"\nrequest_route {{\n\
         sl_send_reply(\"200\", \"own $sel(dst.ip) $sel(dst.port) client $si $sp\");\n}}\n",
        modules.display()
    );
    let kamailio = Program::new("kamailio").args(["-DD", "-E", "-m", "64", "-M", "8", "-Y"]).arg(bed.dir());
    let kamailio = kamailio.arg("-f").arg(bed.write("kamailio.cfg", config)?);
    let _kamailio = with_destinations(bed, kamailio, "5060", &["127.0.0.1:5060"])?;
    for (header, expected) in [
        (client::v2(CLIENT, format!("{PUBLIC}:5060"))?, "own 198.51.100.1 5060 client 203.0.113.7 5000"),
        (client::v2_local(), "own 127.0.0.1 5060 client 127.0.0.1 "),
    ] {
        let mut stream = client::connect("127.0.0.1:5060")?;
        stream.write_all(&[&header, REQUEST].concat())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        ensure!(line.starts_with(&format!("SIP/2.0 200 {expected}")), "{line:?}");
    }
    Ok(())
}
