//! Groups the requests of a batch: the script receives runs of equal requests, not single ones.

use crate::batch::BatchRequest;

/// What one caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(super) cost: u32,
    /// In microseconds.
    pub(super) max_wait: u64,
}

impl BatchRequest for Request {
    const CANCELLED: Self = Self { cost: 0, max_wait: 0 };
}

/// A run of equal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) callers: u32,
    pub(super) request: Request,
}

/// Counts runs of equal requests.
pub(super) fn groups(requests: &[Request]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for request in requests {
        match groups.last_mut().filter(|last| last.request == *request) {
            Some(last) => last.callers += 1,
            None => groups.push(Group { callers: 1, request: *request }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_in_a_row_form_one_group_in_order() {
        let request = |cost| Request { cost, max_wait: 0 };
        let of = |costs: &[u32]| {
            let requests: Vec<_> = costs.iter().map(|cost| request(*cost)).collect();
            groups(&requests).iter().map(|group| (group.callers, group.request.cost)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[1, 1, 1, 2, 1]), [(3, 1), (1, 2), (1, 1)]);
        assert_eq!(of(&[]), []);
    }
}
