//! Many uploads over one connection, most of which don't come to their end.

use h2::server;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::exchange::tests::{Scripts, http2_bed};

/// More than all windows of the connection together would hold if some of them stayed closed: 40 MB.
const UPLOADS: usize = 1000;
const LENGTH: usize = 40_000;
const HALF: usize = LENGTH / 2;

/// How an upload goes on after its first half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It comes whole, and then its answer.
    Whole,
    /// The client resets it before an answer.
    Cancelled,
    /// It is answered, and the client resets it.
    AnsweredAndReset,
    /// It is answered, and the client ends it before its length, as curl does.
    AnsweredAndCutShort,
    /// It is answered, and comes whole nevertheless.
    AnsweredAndWhole,
}

use Course::{AnsweredAndCutShort, AnsweredAndReset, AnsweredAndWhole, Cancelled, Whole};

impl Course {
    const ALL: [Self; 5] = [Whole, Cancelled, AnsweredAndReset, AnsweredAndCutShort, AnsweredAndWhole];

    fn path(self) -> &'static str {
        if matches!(self, Whole | Cancelled) { "/whole" } else { "/early" }
    }

    async fn run(self, client: &mut SendRequest<Bytes>) {
        let request = Request::builder().method(Method::POST).uri(format!("https://a{}", self.path()));
        let request = request.header("content-length", LENGTH).body(()).unwrap();
        let (answer, mut body) = ask(&mut client.clone().ready().await.unwrap(), request);
        upload(&mut body, vec![b'x'; HALF].into()).await.unwrap();
        match self {
            Whole => {
                upload(&mut body, vec![b'x'; LENGTH - HALF].into()).await.unwrap();
                body.send_data(Bytes::new(), true).unwrap();
                let answer = answer.await.unwrap();
                assert_eq!((answer.status().as_u16(), whole(answer).await.unwrap().0), (200, "all".into()));
                return;
            }
            Cancelled => return body.send_reset(Reason::CANCEL),
            _ => {}
        }
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 413);
        match self {
            AnsweredAndReset => return body.send_reset(Reason::NO_ERROR),
            AnsweredAndCutShort => body.send_data(Bytes::new(), true).unwrap(),
            _ => {
                // truepeer may have reset the request meanwhile (NO_ERROR): the answer is whole nevertheless.
                let _ = upload(&mut body, vec![b'x'; LENGTH - HALF].into()).await;
                let _ = body.send_data(Bytes::new(), true);
            }
        }
        assert_eq!(whole(answer).await.unwrap().0, "late", "{self:?}");
    }
}

/// Answers `/early` at once and closes, as an origin does that wants no more, and `/whole` once everything
/// has come.
async fn http1_origin(mut stream: DuplexStream) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        if head.starts_with(b"POST /early ") {
            say(&mut stream, "HTTP/1.1 413 No\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate").await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            return;
        }
        let mut body = vec![0; LENGTH];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        say(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall").await;
    }
}

/// The same by HTTP/2; it resets `/early` once it has answered.
async fn http2_origin(reactor: Reactor, stream: DuplexStream) {
    let mut connection = server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        reactor.spawn(async move {
            let is_early = request.uri().path() == "/early";
            let (status, text) = if is_early { (413, "late") } else { (200, "all") };
            let answer = Response::builder().status(status).body(()).unwrap();
            let mut body = request.into_body();
            let mut got = 0;
            while !is_early && let Some(data) = body.data().await {
                let Ok(data) = data else { return };
                got += data.len();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            assert!(is_early || got == LENGTH);
            if let Ok(mut stream) = respond.send_response(answer, false) {
                let _ = stream.send_data(text.into(), true);
            }
        });
    }
}

/// Each new connection to `origin` is served.
fn serve_origins(reactor: &Reactor, origin: &Scripts, speaks_http2: bool, connections: usize) {
    for _ in 0..connections {
        let stream = origin.next_connection();
        let other = reactor.clone();
        reactor.spawn_attendant(async move {
            if speaks_http2 { http2_origin(other, stream).await } else { http1_origin(stream).await }
        });
    }
}

#[test]
fn uploads_that_are_cut_off_leave_the_connection_as_it_was() {
    for speaks_http2 in [false, true] {
        let settings = HttpSettings::default();
        let bed = if speaks_http2 { http2_bed(settings) } else { bed(settings) };
        let (stream, reactor) = (connect(&bed), bed.reactor.clone());
        // By HTTP/1.1 each upload may need a connection of its own.
        serve_origins(&reactor, &bed.origin, speaks_http2, UPLOADS);
        let sessions = bed.service.sessions.clone();
        bed.run(async move {
            let (mut client, ended) = speak(&reactor, stream).await;
            for number in 0..UPLOADS {
                Course::ALL[number % Course::ALL.len()].run(&mut client).await;
            }
            // Then the connection is as good as a new one.
            for _ in 0..3 {
                Whole.run(&mut client).await;
            }
            drop(client);
            while ended.take().is_none() {
                reactor.sleep(Duration::from_millis(1)).await;
            }
            // Kept connections to the origin are the only ones left.
            while !sessions.has(sessions.limit() - 8) {
                reactor.sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
