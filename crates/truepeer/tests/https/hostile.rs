//! Ambiguous requests: they are refused and never reach the origin.

use anyhow::ensure;
use truepeer_testbed::{Bed, Test, tests};

use crate::kit::{https, origin, python_client};

pub(crate) fn tests() -> Vec<Test> {
    tests![smuggling_is_refused, bytes_after_a_body_are_the_next_request]
}

/// Each requests /1 in an invalid way, or hides a request for /666 after it.
const CORPUS: &str = r"
POST = b'POST /1 HTTP/1.1\r\nHost: site\r\n'
HIDDEN = b'GET /666 HTTP/1.1\r\nHost: site\r\n\r\n'
corpus = [
    POST + b'Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello' + HIDDEN,
    POST + b'Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello' + HIDDEN,
    POST + b'Content-Length: 5, 5\r\n\r\nhello' + HIDDEN,
    POST + b'Content-Length: +5\r\n\r\nhello' + HIDDEN,
    POST + b'Content-Length: 5 5\r\n\r\nhello' + HIDDEN,
    POST + b'Content-Length : 5\r\n\r\nhello' + HIDDEN,
    POST + b'Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    POST + b'X: \0\r\n\r\n' + HIDDEN,
    POST + b'Host: other\r\n\r\n' + HIDDEN,
    POST + b'\x00Transfer-Encoding: chunked\r\n\r\n' + HIDDEN,
    b'POST /1 HTTP/1.0\r\nHost: site\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + HIDDEN,
    b'GET /1 HTTP/1.1\r\n\r\n' + HIDDEN,
    b'GET /1 HTTP/1.1\r\nHost: user@site\r\n\r\n' + HIDDEN,
    b'GET http://other/1 HTTP/1.1\r\nHost: site\r\n\r\n' + HIDDEN,
    b'GET /1 HTTP/1.1\nHost: site\n\n' + HIDDEN,
    b'GET /1\tHTTP/1.1\r\nHost: site\r\n\r\n' + HIDDEN,
    b'GET /1 x HTTP/1.1\r\nHost: site\r\n\r\n' + HIDDEN,
    b'GET /1 HTTP/1.10\r\nHost: site\r\n\r\n' + HIDDEN,
    b'CONNECT site:443 HTTP/1.1\r\nHost: site\r\n\r\n' + HIDDEN,
    b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + HIDDEN,
]
def everything(stream):
    data = b''
    while True:
        try: piece = stream.recv(65536)
        except ConnectionResetError: break
        if not piece: break
        data += piece
    return data
for attack in corpus:
    stream = connect()
    stream.sendall(attack)
    said = everything(stream)
    assert said.startswith((b'HTTP/1.1 400 ', b'HTTP/1.1 505 ')), (attack, said)
    assert said.count(b'HTTP/1.1 ') == 1, (attack, said)
print(len(corpus))
";

fn smuggling_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let origin = origin(bed, 8080)?;
    let _truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?.start(bed)?;
    let said = python_client(bed, CORPUS)?;
    ensure!(said.trim() == "29", "{said}");
    ensure!(!origin.stdout().contains("request"), "the origin was asked: {}", origin.log());
    Ok(())
}

fn bytes_after_a_body_are_the_next_request(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?.start(bed)?;
    let said = python_client(
        bed,
        r"
stream = connect()
stream.sendall(b'POST /1 HTTP/1.1\r\nHost: site\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nGET /\r\n0\r\nX: y\r\n\r\n'
    b'GET /3 HTTP/1.1\r\nHost: site\r\n\r\nGET /4 HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n')
data = b''
while True:
    piece = stream.recv(65536)
    if not piece: break
    data += piece
assert data.count(b'HTTP/1.1 200 ') == 3 and data.endswith(b'\r\n\r\nxxxx') and b'\r\n\r\nxxxHTTP/1.1 200' in data, data
print('in order')
",
    )?;
    ensure!(said.trim() == "in order", "{said}");
    Ok(())
}
