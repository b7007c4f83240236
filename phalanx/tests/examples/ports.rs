//! Ports of a shop with a policy on each.

use crate::{cargo, run};

#[test]
fn the_ports_example_repeats_reads_never_charges_and_stops_asking() {
    let text = run(cargo("ports"));
    let expected = "\
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
