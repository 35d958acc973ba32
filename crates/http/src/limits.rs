//! How much a message may ask for before its body is passed on.

/// Bounds on heads and on what surrounds a chunked body; bodies themselves are streamed and bounded
/// elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Bytes of a head, from its first line to the empty one. At most 2^31.
    pub head_bytes: usize,
    /// Bytes of a request's target.
    pub target_bytes: usize,
    /// Fields of a head, and of a trailer section; the cookies of an HTTP/2 request are one. At most
    /// [`HttpLimits::MOST_FIELDS`].
    pub fields: usize,
    /// Bytes of all chunk extensions of a request's body; of a response, those of one chunk, its padding
    /// included.
    pub chunk_extension_bytes: usize,
    /// Bytes of a trailer section.
    pub trailer_bytes: usize,
}

impl HttpLimits {
    /// More fields than this are never taken.
    pub const MOST_FIELDS: usize = 1024;
}

/// A head of 32 KiB, a target of 16 KiB, 256 fields (browsers keep up to 180 cookies, and a response may set
/// each); 4 KiB of extensions, 8 KiB of trailers.
impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_bytes: 32 << 10,
            target_bytes: 16 << 10,
            fields: 256,
            chunk_extension_bytes: 4 << 10,
            trailer_bytes: 8 << 10,
        }
    }
}
