//! Paths that `h2` refuses although HTTP/1.1 takes them.
//!
//! `h2` reads `:path` as a URI. Clients also send `"`, `<`, `>` and a backtick in it, as over HTTP/1.1. So
//! the header block gets another path before `h2` sees it, and the request gets its own back, which is then
//! held to the rules of HTTP/1.1. The other path has as many bytes, coded and decoded: no frame and no table
//! of HPACK changes its size.

use std::rc::Rc;

use super::huffman;

/// A path that `h2` refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OddPath {
    /// Where its coded text starts in the block, and the text to write there; `None`: it comes from the
    /// table.
    pub(super) other: Option<(usize, Vec<u8>)>,
    /// The path as it was sent.
    pub(super) path: Rc<[u8]>,
}

impl OddPath {
    /// `None` if `h2` takes the path, or if no other one has its size. `coded`: where its coded text stands
    /// in the block.
    pub(super) fn of(path: &[u8], is_huffman: bool, start: usize, coded_bytes: usize) -> Option<Self> {
        let is_text = std::str::from_utf8(path).is_ok();
        let takes = |byte: u8| match byte {
            0..=b' ' | b'"' | b'<' | b'>' | b'`' | 0x7f => false,
            0x80.. => is_text,
            _ => true,
        };
        let starts = matches!(path, [b'/', ..] | b"*" | []);
        if starts && path.iter().all(|&byte| takes(byte)) {
            return None;
        }
        let coded = if is_huffman {
            huffman::path_of_size(path.len(), coded_bytes)?
        } else {
            let rest = path.iter().skip(1).map(|&byte| if takes(byte) { byte } else { b'x' });
            std::iter::once(b'/').chain(rest).collect()
        };
        Some(Self { other: Some((start, coded)), path: path.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(path: &[u8]) -> Option<Vec<u8>> {
        OddPath::of(path, false, 7, path.len()).map(|odd| {
            assert_eq!(&odd.path[..], path);
            odd.other.unwrap().1
        })
    }

    #[test]
    fn other_paths_are_taken_by_h2_and_as_long() {
        for taken in ["/", "/a?b={}", "*", "", "/\u{e4}", "/a#b", "/~|^\\'"] {
            assert_eq!(other(taken.as_bytes()), None, "{taken}");
        }
        for byte in (0..=b' ').chain([b'"', b'<', b'>', b'`', 0x7f, 0xff]) {
            for path in [&[b'/', byte][..], &[byte], &[b'/', b'?', byte, b'y']] {
                let other = other(path).expect("an odd path");
                assert_eq!(other.len(), path.len());
                let other = std::str::from_utf8(&other).unwrap();
                other.parse::<http::uri::PathAndQuery>().expect(other);
            }
        }
        assert_eq!(other(b"x").as_deref(), Some(&b"/"[..]));
    }

    #[test]
    fn other_paths_have_the_size_of_their_huffman_code() {
        for path in [
            "/a<b>c",
            "/>",
            "/>>>",
            "/`",
            "/api/v1/query?query=up>0",
            "/?q={\"a\":\"b\"}",
            "/x y",
            "/<<<<<<<<",
        ] {
            for tail in 0..40 {
                let path = format!("{path}{}", "a".repeat(tail));
                let coded = huffman::encode(path.as_bytes());
                assert_eq!(huffman::decode(&coded).as_deref(), Some(path.as_bytes()));
                let odd = OddPath::of(path.as_bytes(), true, 0, coded.len()).expect(&path);
                let (_, other) = odd.other.unwrap();
                assert_eq!(other.len(), coded.len(), "{path}");
                let other = huffman::decode(&other).expect("a code");
                assert_eq!(other.len(), path.len());
                let other = std::str::from_utf8(&other).unwrap();
                other.parse::<http::uri::PathAndQuery>().expect(other);
            }
        }
        // Codes of control characters are too long.
        let control = huffman::encode(b"/\x02");
        assert_eq!(OddPath::of(b"/\x02", true, 0, control.len()), None);
    }
}
