//! Origins made of raw frames: they behave as no `h2` would.

mod bodies;
mod early;
mod faults;
mod lasting;
mod sharing;
mod states;
mod violations;

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use truepeer_origin::{HttpSettings, HttpTimeouts};

use crate::exchange::tests::{Bed, choosing_bed, http2_bed, rest, say, until};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The code of RST_STREAM and GOAWAY (RFC 9113 section 7).
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const HTTP_1_1_REQUIRED: u32 = 13;

/// `:status: 200` in HPACK.
const OK: &[u8] = &[0x88];

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// The origin's end of a connection.
struct Raw(DuplexStream);

impl Raw {
    /// Reads the client's preface and sends SETTINGS with these parameters.
    async fn begin(mut stream: DuplexStream, settings: &[(u16, u32)]) -> Self {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut raw = Self(stream);
        raw.settings(settings).await;
        raw
    }

    async fn settings(&mut self, settings: &[(u16, u32)]) {
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes()))
            .collect();
        self.send(SETTINGS, 0, 0, &payload).await;
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        // The other end may have closed already.
        let _ = self.0.write_all(&frame(kind, flags, stream, payload)).await;
    }

    /// The next frame; `None`: the connection has ended.
    async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// The next frame of this kind.
    async fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().await.expect("the connection has ended");
            if frame.kind == kind && (kind != SETTINGS || frame.flags & ACK == 0) {
                return frame;
            }
        }
    }

    /// Waits for a request and returns its stream.
    async fn request(&mut self) -> u32 {
        self.next_of(HEADERS).await.stream
    }

    async fn answer(&mut self, stream: u32, body: &[u8]) {
        self.send(HEADERS, END_HEADERS, stream, OK).await;
        self.send(DATA, END_STREAM, stream, body).await;
    }

    async fn reset(&mut self, stream: u32, code: u32) {
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes()).await;
    }

    /// Ends the connection.
    async fn cut(&mut self) {
        let _ = self.0.shutdown().await;
    }

    async fn go_away(&mut self, last: u32) {
        self.send(GOAWAY, 0, 0, &[last.to_be_bytes(), NO_ERROR.to_be_bytes()].concat()).await;
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[a, b, c, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// A literal field of HPACK, not indexed.
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

fn bed() -> Bed {
    http2_bed(HttpSettings::default())
}

/// Short timeouts for origins.
fn impatient() -> HttpTimeouts {
    let short = Duration::from_millis(100);
    HttpTimeouts {
        settings: short,
        ping: short,
        send: short,
        response: Duration::from_secs(10),
        ..HttpTimeouts::default()
    }
}

fn impatient_bed() -> Bed {
    bed_of(impatient())
}

fn bed_of(timeouts: HttpTimeouts) -> Bed {
    http2_bed(HttpSettings { timeouts, ..HttpSettings::default() })
}

const GET: &str = "GET /page HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

/// The status line and the fields of a response.
async fn head(client: &mut DuplexStream) -> String {
    until(client, "\r\n\r\n").await
}
