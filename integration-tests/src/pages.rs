//! The pages of `docs/` and the README as doc tests: every Rust block in them compiles. A test of
//! `phalanx/tests/front_page.rs` checks that no page with Rust is missing.
//!
//! `cargo test -p phalanx-integration-tests --doc` runs them. They are here because this crate is never published, so that
//! it may include files outside its folder.

#[doc = include_str!("../../README.md")]
struct FrontPage;

#[doc = include_str!("../../docs/quick-start.md")]
struct QuickStart;

#[doc = include_str!("../../docs/concepts.md")]
struct Concepts;

#[doc = include_str!("../../docs/stages.md")]
struct Stages;

#[doc = include_str!("../../docs/limits.md")]
struct Limits;

#[doc = include_str!("../../docs/errors.md")]
struct Errors;

#[doc = include_str!("../../docs/fleet.md")]
struct Fleet;

#[doc = include_str!("../../docs/http.md")]
struct Http;

#[doc = include_str!("../../docs/macros.md")]
struct Macros;

#[doc = include_str!("../../docs/configuration.md")]
struct Configuration;

#[doc = include_str!("../../docs/deploying.md")]
struct Deploying;

#[doc = include_str!("../../docs/testing.md")]
struct Testing;

#[doc = include_str!("../../docs/fault-plans.md")]
struct FaultPlans;

#[doc = include_str!("../../docs/telemetry.md")]
struct Telemetry;

#[doc = include_str!("../../docs/runbook.md")]
struct Runbook;

#[doc = include_str!("../../docs/tuning.md")]
struct Tuning;

#[doc = include_str!("../../docs/guarantees.md")]
struct Guarantees;

#[doc = include_str!("../../docs/performance.md")]
struct Performance;
