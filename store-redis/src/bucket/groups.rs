//! What callers want, counted in groups: a script is told of groups, not of callers.

use crate::batch::Void;

/// What one caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(super) cost: u32,
    /// Microseconds.
    pub(super) max_wait: u64,
}

impl Void for Wish {
    const VOID: Self = Self { cost: 0, max_wait: 0 };
}

/// Callers in a row who ask alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) callers: u32,
    pub(super) wish: Wish,
}

/// Callers in a row who ask alike, counted.
pub(super) fn groups(wishes: &[Wish]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for wish in wishes {
        match groups.last_mut().filter(|last| last.wish == *wish) {
            Some(last) => last.callers += 1,
            None => groups.push(Group { callers: 1, wish: *wish }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_who_ask_alike_are_one_group_and_keep_their_order() {
        let wish = |cost| Wish { cost, max_wait: 0 };
        let of = |costs: &[u32]| {
            let wishes: Vec<_> = costs.iter().map(|cost| wish(*cost)).collect();
            groups(&wishes).iter().map(|group| (group.callers, group.wish.cost)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[1, 1, 1, 2, 1]), [(3, 1), (1, 2), (1, 1)]);
        assert_eq!(of(&[]), []);
    }
}
