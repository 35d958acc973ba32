//! A drain that starts while a request is on its way.

use super::*;

/// A client's connection with bytes that the loop has not noticed yet: it returns them only after `look_again`.
struct Hesitant {
    stream: DuplexStream,
    may_read: Cell<bool>,
    /// How many reads return nothing although there are bytes, because the turn's allowance is used up.
    refusals: Cell<usize>,
}

impl Connection for Hesitant {
    fn look_again(&self) {
        self.may_read.set(true);
    }

    fn is_read_out(&self) -> bool {
        !self.may_read.get()
    }
}

impl AsyncRead for Hesitant {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.may_read.get() {
            // The event for these bytes comes later; the stream's own wake replaces it.
            return Poll::Pending;
        }
        if let Some(left) = self.refusals.get().checked_sub(1) {
            self.refusals.set(left);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.may_read.set(read.is_ready());
        read
    }
}

impl AsyncWrite for Hesitant {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[test]
fn a_request_that_arrived_before_the_drain_is_answered() {
    for (may_read, refusals) in [(true, 0), (true, 1), (true, 3), (false, 0), (false, 2)] {
        let bed = bed(HttpSettings::default());
        let (mut client, ours) = duplex(1 << 16);
        let ours = Hesitant { stream: ours, may_read: Cell::new(may_read), refusals: Cell::new(refusals) };
        let mut origin = bed.origin.next_connection();
        let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
        bed.run(async move {
            say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            reactor.remote().drain();
            reactor.spawn(serve_http1(ours, Vec::new(), client_info(), service));
            until(&mut origin, "\r\n\r\n").await;
            say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            assert_eq!(
                rest(&mut client).await,
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
            );
        });
    }
}

#[test]
fn a_connection_without_a_request_is_closed_by_the_drain() {
    let bed = bed(HttpSettings::default());
    let (mut client, ours) = duplex(1 << 16);
    let ours = Hesitant { stream: ours, may_read: Cell::new(true), refusals: Cell::new(2) };
    let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
    bed.run(async move {
        reactor.remote().drain();
        reactor.spawn(serve_http1(ours, Vec::new(), client_info(), service));
        assert_eq!(rest(&mut client).await, "");
    });
}

/// A sender that keeps connections alive may be sending while the drain begins.
#[test]
fn a_request_that_is_sent_just_after_the_drain_began_is_the_last_one_answered() {
    let bed = bed(HttpSettings::default());
    let (mut client, ours) = duplex(1 << 16);
    let ours = Hesitant { stream: ours, may_read: Cell::new(true), refusals: Cell::new(0) };
    let mut origin = bed.origin.next_connection();
    let (reactor, service) = (bed.reactor.clone(), Rc::clone(&bed.service));
    bed.run(async move {
        reactor.spawn(serve_http1(ours, Vec::new(), client_info(), service));
        reactor.sleep(Duration::from_millis(20)).await;
        reactor.remote().drain();
        reactor.sleep(Duration::from_millis(200)).await;
        say(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut origin, "\r\n\r\n").await;
        say(&mut origin, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(
            rest(&mut client).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        );
    });
}
