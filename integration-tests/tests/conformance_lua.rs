//! The conformance suite on the Redis store, with the scripts run in this process.

use phalanx_testkit::bed::LuaBed;
use phalanx_testkit::conformance_suite;

conformance_suite!(LuaBed: rate_limit, breaker, digest, tally, slots, lock);
