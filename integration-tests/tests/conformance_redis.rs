//! The conformance suite on the Redis store, over a real Redis.

use phalanx_testkit::bed::RedisBed;
use phalanx_testkit::conformance_suite;

conformance_suite!(RedisBed: rate_limit, breaker, digest, tally, slots, lock);
