//! Names of months and days, as dates in prompts have them.

pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(crate) const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Abbreviations of other lengths than three letters, and the halves of a day.
const OTHERS: [&str; 6] = ["Sept", "Tues", "Thur", "Thurs", "AM", "PM"];

/// Whether the word is a name in dates, or its abbreviation.
pub(crate) fn is_calendar_name(word: &[u8]) -> bool {
    let names = MONTHS.iter().chain(&DAYS).map(|name| name.as_bytes());
    names.into_iter().any(|name| name == word || &name[..3] == word)
        || OTHERS.iter().any(|name| name.as_bytes() == word)
}
