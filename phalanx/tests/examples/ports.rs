//! The ports demo: methods of a port with a policy on each.

use crate::{example, run};

#[test]
fn the_ports_demo_retries_reads_but_not_charges_and_opens_the_breaker() {
    let text = run(example("ports"));
    let expected = "\
demo: four orders through a port; reads are retried, charges are not
order 1
  1. GET acme: connection reset
  2. GET acme: connection reset
  3. GET acme: 200
  balance: 4200 cents
  4. POST acme: 200
  charged: order 1: 100 cents
order 2
  5. GET acme: 200
  balance: 4200 cents
  6. POST acme: connection reset
  not charged: the provider is unreachable
order 3
  7. GET acme: connection reset
  8. GET acme: connection reset
  9. GET acme: connection reset
  no balance: the provider is unreachable
  10. POST acme: connection reset
  not charged: the provider is unreachable
order 4
  11. GET acme: connection reset
  12. GET acme: connection reset
  13. GET acme: connection reset
  no balance: the provider is unreachable
  not charged: stripe: the circuit is open (circuit_open), retry after ";
    assert!(text.starts_with(expected), "{text}");
}
