//! Policies from files and from the environment.

#[cfg(feature = "schema")]
mod schema;

#[cfg(feature = "schema")]
pub use self::schema::schema;
