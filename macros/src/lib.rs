//! `#[resilient]`: a policy on an async function, a method, or every method of a port.

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
/// It is `module.run(policy, route, || async { … })` around the body, and costs what that costs: nothing is boxed, nothing is
/// kept, no global is read.
///
/// # Options
///
/// | option | what | default |
/// |---|---|---|
/// | `policy = "…"` | the policy's name: a string, or an expression that gives a `&str` | must be given (a method in a bound block has the block's) |
/// | `route = "…"`, `route = tenant`, `route = &self.region` | the route: a string, an argument, or an expression; whatever is `Into<Route>`. An argument that is no reference is lent | none: the policy as a whole |
/// | `module = …` | where the policies are: an expression for a `ResilienceModule` or anything `Resilient`; it may name `self` and the arguments | `self`, which has to be `Resilient` |
/// | `classify = …` | reads the body's results: a `fn(&Result<T, E>) -> Class` | the error's own `Classify` |
/// | `clone(a, b)` | each attempt gets a copy of these arguments | none: attempts borrow the arguments |
/// | `crate = …` | the path of the crate `phalanx` | `::phalanx` |
///
/// On an impl block also:
///
/// | option | what | default |
/// |---|---|---|
/// | `methods(a, b)` | these methods | every method that is async |
/// | `except(a, b)` | every async method but these | |
/// | `allow_blanket_retry` | the policy may retry `infrastructure` on every method | it may not |
///
/// # What the function returns
///
/// A policy may reject, so the return type has to have a place for it. There are two ways to write it:
///
/// - `Result<T, phalanx::Error<E>>`, in so many words: rejections stand beside the errors of the body. The body is written as if
///   there were no policy: it returns `Result<T, E>`, and its `?` converts into `E`.
/// - `Result<T, E>` with an `E: From<Rejection>` of your own: a rejection becomes an `E`. The body returns what the signature says.
///   An alias such as `type Answer<T> = Result<T, MyError>` will do.
///
/// Either way the body's error says what kind of failure it is by `Classify`, or `classify = …` does.
///
/// # What an attempt is given
///
/// A retry runs the whole body again, so an attempt may not use up or change what the next one needs. Arguments are
/// borrowed: whatever only reads them, or copies them, just works. A body that consumes an argument does not compile until the
/// attribute says `clone(argument)`. `&mut self`, `&mut` arguments and `mut` arguments without a copy are rejected with the
/// reason. As the body borrows them while it waits, arguments have to be `Sync` where the future is to be `Send`.
///
/// # A whole port
///
/// On an impl block, of a type or of a trait, the policy goes on every method that is async and has a `self`. Methods that are not
/// async, functions without `self` and methods that give an `impl Stream` stay as they are. With `#[async_trait]`, `#[resilient]`
/// stands above it.
///
/// The route is the same for all methods unless they say otherwise: a port is one dependency, and where it is down it is
/// down for all of them. A method's own `#[resilient(…)]` overrides the block's option by option; `clone(…)` has its place
/// there. Naming a `policy` there means this one method, so it may be one that retries.
///
/// A failure of the infrastructure leaves open whether the call had its effect. A policy that retries such failures is therefore
/// rejected around a whole port, with the code `blanket_retry` and before anything is run: name the methods that may
/// be repeated (`methods(…)`, or a method's own `policy`), or say `allow_blanket_retry`. `ResilienceModule::port_pipeline`
/// asks the same at start-up.
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
/// ```
#[proc_macro_attribute]
pub fn resilient(options: TokenStream, item: TokenStream) -> TokenStream {
    let unchanged: proc_macro2::TokenStream = item.clone().into();
    match expand(options, item) {
        Ok(tokens) => tokens,
        Err(Failed { error, item }) => {
            // The item stays, so that one mistake is not followed by a hundred names that cannot be found.
            let mut tokens = error.into_compile_error();
            tokens.extend(item.unwrap_or(unchanged));
            tokens.into()
        }
    }
}

struct Failed {
    error: Error,
    /// What to leave in place, if not the item as it was.
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
            block::bare(&mut bare);
            let failed = |error| Failed { error, item: Some(bare.to_token_stream()) };
            let options: Options = syn::parse(options).map_err(failed)?;
            block::attach_all(&mut block, &options).map_err(failed)?;
            Ok(block.into_token_stream().into())
        }
        Item::Trait(it) => Err(misplaced(&it.ident, "a trait has nothing to run: put `#[resilient]` on its impl")),
        other => Err(misplaced(&other, "`#[resilient]` goes on an async function, a method or an impl block")),
    }
}

fn misplaced(at: &dyn ToTokens, why: &str) -> Failed {
    Error::new_spanned(at, why).into()
}

fn parse(item: TokenStream) -> Result<Item> {
    match syn::parse(item)? {
        // How the parser hands over what only a trait can have: a method without a body.
        Item::Verbatim(tokens) => match syn::parse2::<TraitItemFn>(tokens.clone()) {
            Ok(method) => Err(Error::new_spanned(
                method.sig.ident,
                "a method without a body has nothing to run: put `#[resilient]` on the impl",
            )),
            Err(_) => Ok(Item::Verbatim(tokens)),
        },
        item => Ok(item),
    }
}
