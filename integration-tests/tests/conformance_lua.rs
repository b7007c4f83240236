//! The conformance suite on the Redis store, with the scripts run in this process.

use phalanx_integration_tests::bed::LuaBed;
use phalanx_integration_tests::conformance_suite;

conformance_suite!(LuaBed);
