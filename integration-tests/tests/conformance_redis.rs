//! The conformance suite on the Redis store, over a real Redis.

use phalanx_integration_tests::bed::RedisBed;
use phalanx_integration_tests::conformance_suite;

conformance_suite!(RedisBed);
