//! HTTP/2 as far as the lean origin needs it: every request gets the page. Windows are not kept: the page is
//! far smaller than any proxy's, and proxies open them again in time.

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// SETTINGS_MAX_CONCURRENT_STREAMS, as NGINX's.
const STREAMS: [u8; 6] = [0, 3, 0, 0, 0, 128];

/// One connection.
#[derive(Default)]
pub(super) struct Http2 {
    has_begun: bool,
}

impl Http2 {
    /// Takes whole frames off `heard` and writes the answers.
    pub(super) fn serve(&mut self, heard: &mut Vec<u8>, fields: &[u8], page: &[u8], out: &mut Vec<u8>) {
        let mut at = 0;
        if !self.has_begun {
            if heard.len() < PREFACE_BYTES {
                return;
            }
            (self.has_begun, at) = (true, PREFACE_BYTES);
            frame(out, SETTINGS, 0, [0; 4], &STREAMS);
        }
        while let Some(&[a, b, c, kind, flags, s, t, u, v]) = heard.get(at..at + HEAD_BYTES) {
            let end = at + HEAD_BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
            let Some(payload) = heard.get(at + HEAD_BYTES..end) else { break };
            match kind {
                HEADERS => {
                    frame(out, HEADERS, END_HEADERS, [s, t, u, v], fields);
                    frame(out, DATA, END_STREAM, [s, t, u, v], page);
                }
                SETTINGS if flags & ACK == 0 => frame(out, SETTINGS, ACK, [0; 4], &[]),
                PING if flags & ACK == 0 => frame(out, PING, ACK, [0; 4], payload),
                _ => {}
            }
            at = end;
        }
        heard.drain(..at);
    }
}

/// The same fields as in HTTP/1.1, as literals of HPACK.
pub(super) fn fields() -> Vec<u8> {
    let mut block = vec![0x88]; // :status 200
    for (name, value) in [
        ("server", "bench"),
        ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("content-type", "application/octet-stream"),
        ("content-length", "1024"),
        ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("etag", "\"0-400\""),
        ("accept-ranges", "bytes"),
    ] {
        block.push(0);
        for text in [name, value] {
            // Each is shorter than 127 bytes.
            block.push(text.len().to_le_bytes()[0]);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: [u8; 4], payload: &[u8]) {
    let [a, b, c, ..] = payload.len().to_le_bytes();
    out.extend_from_slice(&[c, b, a, kind, flags]);
    out.extend_from_slice(&stream);
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_gets_the_page_however_it_is_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut bytes, SETTINGS, 0, [0; 4], &[]);
        frame(&mut bytes, HEADERS, END_HEADERS | END_STREAM, [0, 0, 0, 1], b"\x82");
        frame(&mut bytes, PING, 0, [0; 4], b"12345678");
        let mut expected = Vec::new();
        frame(&mut expected, SETTINGS, 0, [0; 4], &STREAMS);
        frame(&mut expected, SETTINGS, ACK, [0; 4], &[]);
        frame(&mut expected, HEADERS, END_HEADERS, [0, 0, 0, 1], b"fields");
        frame(&mut expected, DATA, END_STREAM, [0, 0, 0, 1], b"page");
        frame(&mut expected, PING, ACK, [0; 4], b"12345678");
        for size in [1, 7, bytes.len()] {
            let (mut http2, mut heard, mut out) = (Http2::default(), Vec::new(), Vec::new());
            for piece in bytes.chunks(size) {
                heard.extend_from_slice(piece);
                http2.serve(&mut heard, b"fields", b"page", &mut out);
            }
            assert_eq!(out, expected);
        }
    }
}
