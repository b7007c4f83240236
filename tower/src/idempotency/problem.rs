//! [`IdempotencyProblem`]: the responses that the layer itself makes.

use bytes::Bytes;
use http::Response;

use crate::edge::Problem;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdempotencyProblem {
    KeyMissing,
    KeyInvalid,
    BodyUnreadable,
    BodyTooLarge,
    Mismatch,
    InProgress,
    AnswerNotStored,
}

impl IdempotencyProblem {
    /// Returns status, area, code and title.
    const fn parts(self) -> (u16, &'static str, &'static str, &'static str) {
        match self {
            Self::KeyMissing => (400, "VALIDATION", "idempotency_key_missing", "this request needs an Idempotency-Key"),
            Self::KeyInvalid => {
                (400, "VALIDATION", "idempotency_key_invalid", "the Idempotency-Key is too long, repeated or not ASCII")
            }
            Self::BodyUnreadable => (400, "VALIDATION", "idempotency_body_unreadable", "the body could not be read"),
            Self::BodyTooLarge => {
                (413, "VALIDATION", "idempotency_body_too_large", "the body is too large for an Idempotency-Key")
            }
            Self::Mismatch => {
                (409, "CONFLICT", "idempotency_mismatch", "another request was sent with this Idempotency-Key")
            }
            Self::InProgress => (
                409,
                "CONFLICT",
                "idempotency_in_progress",
                "the first request with this Idempotency-Key is still running",
            ),
            Self::AnswerNotStored => (
                409,
                "CONFLICT",
                "idempotency_answer_not_stored",
                "the request was answered; its answer was not stored",
            ),
        }
    }

    pub(crate) fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let (status, area, code, title) = self.parts();
        let problem = Problem {
            type_uri: "https://docs.rs/phalanx-tower/latest/phalanx_tower/idempotency/index.html".to_owned(),
            title,
            status,
            code,
            message_id: format!("{area}.{code}"),
            retry_after: (self == Self::InProgress).then_some(1),
        };
        problem.into_response()
    }
}
