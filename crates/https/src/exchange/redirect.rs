//! Requests without TLS that truepeer answers itself: sent on to https, or an ACME authority's questions.

use truepeer_http::fields::FieldList;
use truepeer_http::{BodyLength, HeadError, RequestHead, ResponseHead};
use truepeer_origin::host::without_port;
use truepeer_origin::{Failure, Outgoing};

/// Answers with 308 and the same host and path by https on `port`. 308 keeps the method and the body (RFC
/// 9110 section 15.4.9).
pub(super) async fn redirect(
    request: &RequestHead,
    port: u16,
    response: &mut ResponseHead,
    outgoing: &mut impl Outgoing,
) -> Result<(), Failure> {
    if request.host().is_empty() {
        return Err(Failure::BadRequest(HeadError::HostMissing));
    }
    response.begin_http2(308, b"Permanent Redirect");
    response.fields.push(b"Location", &location(request.host(), port, request.target()));
    let is_head = request.method() == b"HEAD";
    response.finish_http2(false, is_head).map_err(Failure::BadResponse)?;
    let is_whole = matches!(request.length, BodyLength::None | BodyLength::Known(0));
    outgoing.head(response, is_whole).await?;
    outgoing.end(&FieldList::default()).await
}

/// Answers with 200 and this text.
pub(super) async fn answer_text(
    request: &RequestHead,
    text: &str,
    response: &mut ResponseHead,
    outgoing: &mut impl Outgoing,
) -> Result<(), Failure> {
    response.begin_http2(200, b"OK");
    response.fields.push(b"Content-Type", b"text/plain");
    response.fields.push(b"Content-Length", text.len().to_string().as_bytes());
    let is_head = request.method() == b"HEAD";
    response.finish_http2(true, is_head).map_err(Failure::BadResponse)?;
    let is_whole = matches!(request.length, BodyLength::None | BodyLength::Known(0));
    outgoing.head(response, is_whole).await?;
    if !is_head {
        outgoing.data(text.as_bytes()).await?;
    }
    outgoing.end(&FieldList::default()).await
}

/// The URL of `target` (`*` has no path) on `host`, which may name another port.
fn location(host: &[u8], port: u16, target: &[u8]) -> Vec<u8> {
    let mut url = b"https://".to_vec();
    url.extend_from_slice(without_port(host));
    if port != 443 {
        url.extend_from_slice(format!(":{port}").as_bytes());
    }
    url.extend_from_slice(if target.starts_with(b"/") { target } else { b"/" });
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_has_the_https_port_and_the_same_path() {
        for (host, port, target, url) in [
            ("site", 443, "/a?b=c", "https://site/a?b=c"),
            ("site:80", 443, "/", "https://site/"),
            ("site:8080", 8443, "/", "https://site:8443/"),
            ("[2001:db8::1]:80", 443, "/x", "https://[2001:db8::1]/x"),
            ("[2001:db8::1]", 8443, "/x", "https://[2001:db8::1]:8443/x"),
            ("site", 443, "*", "https://site/"),
        ] {
            assert_eq!(location(host.as_bytes(), port, target.as_bytes()), url.as_bytes());
        }
    }
}
