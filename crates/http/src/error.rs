//! The errors in a message, in words for the log and as a label for counters.

macro_rules! reasons {
    ($(#[$doc:meta])* $error:ident { $($(#[doc = $help:literal])+ $variant:ident($label:literal, $text:literal),)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
        pub enum $error { $($(#[doc = $help])+ #[error($text)] $variant,)+ }

        impl $error {
            /// Every one there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The label of counters.
            #[must_use]
            pub fn reason(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

reasons! {
    /// A head that is refused.
    HeadError {
        /// A line that ends in LF alone: other programs would not end it there.
        BareLf("bare_lf", "a line ends in LF without CR"),
        /// Nothing where the first line belongs, more than once.
        EmptyLines("empty_lines", "empty lines before the first line"),
        /// The head has no end within the limit.
        TooLong("head_too_long", "the head is too long"),
        /// More fields than the limit.
        TooManyFields("too_many_fields", "the head has too many fields"),
        /// The target is longer than the limit.
        TargetTooLong("target_too_long", "the request's target is too long"),
        /// No request line or status line.
        FirstLine("first_line", "the first line is not one of HTTP/1"),
        /// HTTP of another version than 1.0 and 1.1.
        Version("http_version", "not HTTP/1.x"),
        /// A field's name or value has characters that it must not have, white space before the colon among them, or a
        /// line is folded.
        Field("invalid_field", "a field has a character that is not allowed, or a folded line"),
        /// `Content-Length` is not one decimal number in one field.
        ContentLength("content_length", "Content-Length is not one number in one field"),
        /// Both `Content-Length` and `Transfer-Encoding`.
        TwoLengths("two_lengths", "Content-Length beside Transfer-Encoding"),
        /// `Transfer-Encoding` is not `chunked` in one field, or in HTTP/1.0.
        TransferEncoding("transfer_encoding", "Transfer-Encoding is not \"chunked\" in one field, or in HTTP/1.0"),
        /// No `Host` in HTTP/1.1.
        HostMissing("host_missing", "Host is missing"),
        /// More than one `Host`.
        HostRepeated("host_repeated", "Host is repeated"),
        /// `Host` is not a host with an optional port.
        HostInvalid("host_invalid", "Host is not a host and port"),
        /// The target names another host than `Host`.
        HostDisagrees("host_disagrees", "the target names another host than Host"),
        /// The target has none of the forms that its method may have.
        Target("invalid_target", "the request's target is no path, or has a character that must be percent-encoded"),
        /// A status below 100.
        Status("invalid_status", "the status is not one of HTTP"),
    }
}

reasons! {
    /// A body that is refused.
    BodyError {
        /// The chunk size is not a plain hexadecimal number below 2^63.
        ChunkSize("chunk_size", "a chunk's size is not a plain hexadecimal number"),
        /// A chunk extension has characters that it must not have.
        ChunkExtension("chunk_extension", "a chunk extension has a character that is not allowed"),
        /// More bytes of chunk extensions than the limit.
        ChunkExtensionsTooLong("chunk_extensions_too_long", "chunk extensions are too long"),
        /// A chunk is not followed by CRLF.
        ChunkEnd("chunk_end", "a chunk does not end in CRLF"),
        /// The trailer section is too long or has too many fields.
        TrailersTooLong("trailers_too_long", "the trailers are too long"),
        /// The trailer section is invalid.
        Trailers("invalid_trailers", "a trailer is invalid"),
    }
}

impl HeadError {
    /// The status that answers a request with this fault.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::TooLong | Self::TooManyFields => 431,
            Self::TargetTooLong => 414,
            Self::Version => 505,
            _ => 400,
        }
    }
}
