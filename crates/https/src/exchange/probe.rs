//! truepeer's own request to an origin, which checks whether that is up.

use std::future::pending;

use truepeer_http::fields::FieldList;
use truepeer_http::{RequestHead, ResponseHead};
use truepeer_origin::{
    CHECK_LIMIT, ClientInfo, Departure, Dial, DialError, Failure, Incoming, Outgoing, TimeLimit,
};
use truepeer_policy::BackendAddr;
use truepeer_session::connect_as::ConnectError;

use super::serve::{Service, Target};

/// No body.
struct Nothing(FieldList);

impl Incoming for Nothing {
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        Ok(None)
    }

    fn trailers(&self) -> &FieldList {
        &self.0
    }

    async fn departure(&mut self) -> Departure {
        pending().await
    }
}

/// Discards the response's body.
struct Discarded;

impl Outgoing for Discarded {
    async fn interim(&mut self, _: &ResponseHead) -> Result<(), Failure> {
        Ok(())
    }

    async fn proceed(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn head(&mut self, _: &ResponseHead, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    async fn data(&mut self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn end(&mut self, _: &FieldList) -> Result<(), Failure> {
        Ok(())
    }
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeFailure {
    /// The origin failed the request, or did not take it.
    #[error("{0}")]
    Failed(Failure),
    /// The origin answered with an error.
    #[error("it answers {path} with status {status}")]
    Status { path: String, status: u16 },
    /// The origin did not answer in time.
    #[error("no answer within {} s", CHECK_LIMIT.as_secs())]
    Timeout,
    /// truepeer itself could not ask: out of descriptors, memory or ports.
    #[error("{0}")]
    Own(Failure),
}

impl ProbeFailure {
    /// Whether a time-out has passed, which may also be because this worker was held up.
    pub(crate) fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout => true,
            Self::Failed(failure) => matches!(
                failure,
                Failure::Dial(DialError::Timeout(_)) | Failure::OriginTimeout(_) | Failure::OriginStalled(_)
            ),
            _ => false,
        }
    }
}

impl From<Failure> for ProbeFailure {
    fn from(failure: Failure) -> Self {
        match &failure {
            // Nothing listens there: the origin is down.
            Failure::Dial(DialError::Connect(ConnectError::WithItself)) => Self::Failed(failure),
            Failure::Dial(error) if error.is_ours() => Self::Own(failure),
            _ => Self::Failed(failure),
        }
    }
}

impl<O: Dial> Service<O> {
    /// The address of the origin with this number for this client.
    pub(crate) fn backend(&self, number: usize, client_info: &ClientInfo) -> BackendAddr {
        self.origins.at(number).dialler.backend(client_info)
    }

    /// Asks the origin with this number for `path` on `host`, or only connects. `client_info` stands for
    /// truepeer itself.
    pub(crate) async fn probe(
        &self,
        number: usize,
        client_info: &ClientInfo,
        path: Option<&str>,
        host: &str,
    ) -> Result<(), ProbeFailure> {
        let origin = self.origins.at(number);
        let Some(path) = path else {
            let dialled = origin.dialler.dial(client_info, origin.protocol.offer()).await;
            return dialled.map(drop).map_err(|error| Failure::from(error).into());
        };
        let mut request = RequestHead::default();
        request.begin_http2(b"GET", path.as_bytes(), host.as_bytes());
        request.fields.push(b"user-agent", b"truepeer-health");
        request.finish_http2(false).map_err(Failure::BadRequest)?;
        let time_limit = (TimeLimit::new(&self.reactor), TimeLimit::new(&self.reactor));
        let mut response = ResponseHead::default();
        let (mut incoming, mut outgoing) = (Nothing(FieldList::default()), Discarded);
        let target = Target { client_info, origin, access: &self.private_access(origin) };
        self.exchange(&target, &request, &mut response, &time_limit, &mut incoming, &mut outgoing).await?;
        match response.status {
            200..=399 => Ok(()),
            status => Err(ProbeFailure::Status { path: path.to_owned(), status }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use truepeer_sys::Named as _;

    use super::*;

    #[test]
    fn only_the_origins_own_failures_count_against_it() {
        let call = |errno| {
            let failed: io::Result<()> = Err(io::Error::from_raw_os_error(errno));
            Failure::Dial(DialError::Connect(ConnectError::Call(failed.named("connect").unwrap_err())))
        };
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            assert!(matches!(ProbeFailure::from(call(errno)), ProbeFailure::Own(_)), "{errno}");
        }
        let itself = Failure::Dial(DialError::Connect(ConnectError::WithItself));
        for failure in [call(libc::ECONNREFUSED), itself, Failure::OriginClosed] {
            assert!(matches!(ProbeFailure::from(failure), ProbeFailure::Failed(_)));
        }
        let limit = Duration::from_secs(1);
        for failure in [Failure::Dial(DialError::Timeout(limit)), Failure::OriginTimeout(limit)] {
            assert!(ProbeFailure::from(failure).is_timeout());
        }
        assert!(!ProbeFailure::from(Failure::OriginClosed).is_timeout());
    }
}
