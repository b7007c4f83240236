//! The attribute `#[resilient]`: runs an async function, a method, or every async method of an impl block under a policy.
//!
//! Use it through the crate `phalanx`, which re-exports it.

mod arguments;
mod block;
mod function;
mod options;

use proc_macro::TokenStream;
use quote::ToTokens;
use syn::{Error, Item, Result, TraitItemFn};

use crate::function::Bound;
use crate::options::Options;

/// Runs an async function, a method, or every async method of an impl block under a policy.
///
/// # Examples
///
/// ```
/// use phalanx::{Error, Kind, Policy, ResilienceModule, Resilient, resilient};
///
/// struct Stripe {
///     resilience: ResilienceModule,
/// }
///
/// impl Resilient for Stripe {
///     fn resilience(&self) -> &ResilienceModule {
///         &self.resilience
///     }
/// }
///
/// impl Stripe {
///     #[resilient(policy = "payments", route = tenant)]
///     async fn charge(&self, tenant: &str, cents: u32) -> Result<u32, Error<Kind>> {
///         if cents == 0 { Err(Kind::Validation) } else { Ok(cents) }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let resilience = ResilienceModule::in_memory().policy(Policy::named("payments")).build()?;
/// assert_eq!(Stripe { resilience }.charge("acme", 100).await, Ok(100));
/// # Ok(())
/// # }
/// ```
///
/// It expands to `module.run(policy, route, || async { … })` around the body and costs the same: nothing is boxed or cached,
/// and no global is read.
///
/// # Options
///
/// | option | meaning | default |
/// |---|---|---|
/// | `policy = "…"` | the policy's name: a string, or an expression of type `&str` | required (a method in an annotated block inherits the block's) |
/// | `route = "…"`, `route = tenant`, `route = &self.region` | the route: a string, an argument, or an expression that is `Into<Route>`. An argument that is not a reference is borrowed | no route |
/// | `module = …` | the module: an expression of type `ResilienceModule` or of a type that implements `Resilient`; it may use `self` and the arguments | `self`, which must implement `Resilient` |
/// | `classify = …` | classifies the body's results: a `fn(&Result<T, E>) -> Class` | the error's `Classify` |
/// | `clone(a, b)` | each attempt gets a clone of these arguments | none: attempts borrow the arguments |
/// | `crate = …` | the path of the crate `phalanx` | `::phalanx` |
///
/// On an impl block also:
///
/// | option | meaning | default |
/// |---|---|---|
/// | `methods(a, b)` | only these methods | every async method |
/// | `except(a, b)` | every async method except these | |
/// | `allow_blanket_retry` | allows a policy that retries `infrastructure` on every method | such a policy is rejected |
///
/// # Return type
///
/// A policy may reject a call, so the return type must be able to represent a rejection. There are two forms:
///
/// - `Result<T, phalanx::Error<E>>`, spelled out in the signature: rejections are separate from the errors of the body. The body
///   is written as without a policy: it returns `Result<T, E>`, and its `?` converts into `E`.
/// - `Result<T, E>` where `E: From<Rejection>`: a rejection is converted into `E`. The body returns the type in the signature. An
///   alias such as `type Answer<T> = Result<T, MyError>` works too.
///
/// In both forms the body's error is classified by its `Classify`, or by `classify = …`.
///
/// # Arguments
///
/// A retry runs the whole body again, so an attempt must not consume or change what the next one needs. The body borrows the
/// arguments; one that only reads or copies them needs nothing. A body that consumes an argument does not compile without
/// `clone(argument)`. `&mut self`, `&mut` arguments, and `mut` arguments without `clone` are rejected by the attribute. Because
/// the body borrows its arguments across awaits, they must be `Sync` for the future to be `Send`.
///
/// # Impl blocks
///
/// On an impl block, inherent or of a trait, the policy applies to every async method with a `self`. Methods that are not async,
/// functions without `self` and methods that return `impl Stream` stay as they are. Put `#[resilient]` above `#[async_trait]`.
///
/// The route is the same for all methods by default: an impl block is one port to one dependency. The `#[resilient(…)]` of a
/// method overrides the options of the block one by one; `clone(…)` is only allowed there. A `policy` on a method applies to this
/// method only, so it may be one that retries.
///
/// An `infrastructure` failure leaves open whether the call took effect. A policy that retries such failures is therefore
/// rejected for a whole block, with the code `blanket_retry` and before anything runs: name the methods that may be repeated
/// (`methods(…)`, or a `policy` on the method), or allow it with `allow_blanket_retry`. `ResilienceModule::port_pipeline` makes
/// the same check at startup. After the check, a change of the policy that would make it retry such failures is rejected.
///
/// # Examples of an impl block
///
/// ```
/// # use phalanx::{Error, Kind, Policy, ResilienceModule, Resilient, resilient};
/// # struct Stripe { resilience: ResilienceModule }
/// # impl Resilient for Stripe { fn resilience(&self) -> &ResilienceModule { &self.resilience } }
/// trait Payments {
///     async fn balance(&self, account: &str) -> Result<u32, Error<Kind>>;
///     async fn charge(&self, account: &str, order: Vec<u32>) -> Result<u32, Error<Kind>>;
/// }
///
/// #[resilient(policy = "stripe", route = "eu")]
/// impl Payments for Stripe {
///     #[resilient(policy = "stripe-reads")]
///     async fn balance(&self, account: &str) -> Result<u32, Error<Kind>> {
///         Ok(account.len() as u32)
///     }
///
///     #[resilient(clone(order))]
///     async fn charge(&self, account: &str, order: Vec<u32>) -> Result<u32, Error<Kind>> {
///         Ok(order.into_iter().sum())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policies = ["stripe", "stripe-reads"].map(Policy::named);
/// let stripe = Stripe { resilience: ResilienceModule::in_memory().policies(policies).build()? };
/// assert_eq!(stripe.charge("acme", vec![1, 2]).await, Ok(3));
/// assert_eq!(stripe.resilience.pipelines().len(), 1); // the policy `stripe` on the route `eu`
/// # Ok(())
/// # }
/// ```
#[proc_macro_attribute]
pub fn resilient(options: TokenStream, item: TokenStream) -> TokenStream {
    let unchanged: proc_macro2::TokenStream = item.clone().into();
    match expand(options, item) {
        Ok(tokens) => tokens,
        Err(Failed { error, item }) => {
            // The item stays, so that one mistake does not cause errors about missing names.
            let mut tokens = error.into_compile_error();
            tokens.extend(item.unwrap_or(unchanged));
            tokens.into()
        }
    }
}

struct Failed {
    error: Error,
    /// The item to emit beside the error, if not the original.
    item: Option<proc_macro2::TokenStream>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, item: None }
    }
}

fn expand(options: TokenStream, item: TokenStream) -> std::result::Result<TokenStream, Failed> {
    match parse(item)? {
        Item::Fn(mut function) => {
            let options: Options = syn::parse(options)?;
            options.check_for_function()?;
            function::attach(&mut function.sig, &mut function.block, &options, Bound::ByName)?;
            Ok(function.into_token_stream().into())
        }
        Item::Impl(mut block) => {
            let mut bare = block.clone();
            block::strip_attributes(&mut bare);
            let failed = |error| Failed { error, item: Some(bare.to_token_stream()) };
            let options: Options = syn::parse(options).map_err(failed)?;
            block::attach_all(&mut block, &options).map_err(failed)?;
            Ok(block.into_token_stream().into())
        }
        Item::Trait(it) => Err(misplaced(&it.ident, "a trait has no bodies to run: put `#[resilient]` on its impl")),
        other => {
            Err(misplaced(&other, "`#[resilient]` is only allowed on an async function, a method or an impl block"))
        }
    }
}

fn misplaced(at: &dyn ToTokens, why: &str) -> Failed {
    Error::new_spanned(at, why).into()
}

fn parse(item: TokenStream) -> Result<Item> {
    match syn::parse(item)? {
        // syn parses a method without a body as verbatim tokens.
        Item::Verbatim(tokens) => match syn::parse2::<TraitItemFn>(tokens.clone()) {
            Ok(method) => Err(Error::new_spanned(
                method.sig.ident,
                "a method without a body cannot be run: put `#[resilient]` on the impl",
            )),
            Err(_) => Ok(Item::Verbatim(tokens)),
        },
        item => Ok(item),
    }
}
