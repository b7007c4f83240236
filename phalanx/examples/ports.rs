//! Demo: policies on a port. The domain calls a trait, the methods of the adapter run under policies, and neither contains
//! retry code. For a small example see `attribute`.
//!
//! ```sh
//! cargo run --example ports
//! ```

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use phalanx::{
    Backoff, BreakerSpec, Class, Classify, Kind, Policy, Rejection, ResilienceModule, Resilient, RetrySpec, resilient,
};

/// The port of the domain.
trait Payments {
    async fn balance(&self, account: &str) -> Result<u32, PaymentError>;
    async fn charge(&self, account: &str, order: Order) -> Result<Receipt, PaymentError>;
}

#[derive(Clone)]
struct Order {
    id: u32,
    cents: u32,
}

#[derive(Debug)]
struct Receipt(String);

#[derive(Debug)]
enum PaymentError {
    /// The provider did not answer.
    Unreachable,
    /// A policy rejected the call.
    Rejected(Rejection),
}

impl From<Rejection> for PaymentError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl Classify for PaymentError {
    fn classify(&self) -> Class {
        match self {
            Self::Unreachable => Kind::Infrastructure.into(),
            Self::Rejected(rejection) => rejection.classify(),
        }
    }
}

impl fmt::Display for PaymentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => f.write_str("the provider is unreachable"),
            Self::Rejected(rejection) => rejection.fmt(f),
        }
    }
}

/// The adapter, with the HTTP client of the provider.
struct Stripe {
    resilience: ResilienceModule,
    http: Http,
}

impl Resilient for Stripe {
    fn resilience(&self) -> &ResilienceModule {
        &self.resilience
    }
}

#[resilient(policy = "stripe", route = "eu")] // every async method of the port
impl Payments for Stripe {
    #[resilient(policy = "stripe-reads")] // reads may be retried, so they have a policy of their own
    async fn balance(&self, account: &str) -> Result<u32, PaymentError> {
        self.http.get(account).await
    }

    #[resilient(route = account, clone(order))] // an argument as the route; each attempt gets a clone of the order
    async fn charge(&self, account: &str, order: Order) -> Result<Receipt, PaymentError> {
        self.http.post(account, order).await
    }
}

/// A provider that is down, back for three requests, and down again.
struct Http(AtomicU32);

impl Http {
    async fn get(&self, account: &str) -> Result<u32, PaymentError> {
        self.request("GET", account)?;
        Ok(4_200)
    }

    async fn post(&self, account: &str, order: Order) -> Result<Receipt, PaymentError> {
        self.request("POST", account)?;
        Ok(Receipt(format!("order {}: {} cents", order.id, order.cents)))
    }

    fn request(&self, method: &str, account: &str) -> Result<(), PaymentError> {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let answered = (3..=5).contains(&number);
        println!("  {number}. {method} {account}: {}", if answered { "200" } else { "connection reset" });
        if answered { Ok(()) } else { Err(PaymentError::Unreachable) }
    }
}

async fn checkout(payments: &impl Payments, account: &str, order: Order) {
    println!("order {}", order.id);
    match payments.balance(account).await {
        Ok(balance) => println!("  balance: {balance} cents"),
        Err(error) => println!("  no balance: {error}"),
    }
    match payments.charge(account, order).await {
        Ok(Receipt(text)) => println!("  charged: {text}"),
        Err(error) => println!("  not charged: {error}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pause = Backoff::constant(Duration::from_millis(10));
    let resilience = ResilienceModule::in_memory()
        .policy(
            Policy::named("stripe")
                .breaker(BreakerSpec::consecutive_failures(2).break_for(Duration::from_secs(60)))
                .timeout(Duration::from_secs(1)),
        )
        .policy(Policy::named("stripe-reads").retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(pause)))
        .build()?;
    let stripe = Stripe { resilience, http: Http(AtomicU32::new(0)) };
    println!("demo: four orders through a port; reads are retried, charges are not");
    for id in 1..=4 {
        checkout(&stripe, "acme", Order { id, cents: 100 * id }).await;
    }
    Ok(())
}
