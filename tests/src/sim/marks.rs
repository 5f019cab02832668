//! Marks: whatever is said carries one of its own, by which it is found again in the message that carries it.

/// The marks in a text, such as `m3` in `<m3>`, in order.
pub(super) fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.split('<').skip(1).filter_map(|rest| {
        let (mark, _) = rest.split_once('>')?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.';
        (!mark.is_empty() && mark.chars().all(plain)).then_some(mark)
    })
}
