//! The accounts of an image, written into the account files directly.
//!
//! `useradd` would do it as well, but it takes the day from the clock, and two
//! builds on two days would differ.

use std::{fmt::Write as _, fs, path::Path};

use domain::image::facts::User;

const SECONDS_A_DAY: u64 = 86_400;

/// Adds `users` to the file system at `root` and sets every account's day of
/// last change from `epoch`.
pub(crate) fn add(root: &Path, users: &[User], person: &str, epoch: u64) -> anyhow::Result<()> {
    let etc = root.join("etc");
    let day = epoch / SECONDS_A_DAY;
    let append = |file: &str, line: &dyn Fn(&User) -> String| -> anyhow::Result<()> {
        let path = etc.join(file);
        let mut text = fs::read_to_string(&path)?;
        for user in users {
            writeln!(text, "{}", line(user))?;
        }
        if file == "shadow" {
            text = dated(&text, day);
        }
        // Writing in place keeps the owner and the mode the file has.
        Ok(fs::write(path, text)?)
    };
    append("passwd", &|User { name, id, home, shell }| {
        format!("{name}:x:{id}:{id}::{home}:{shell}")
    })?;
    append("group", &|User { name, id, .. }| format!("{name}:x:{id}:"))?;
    // No account has a password, and `*` matches none.
    append("shadow", &|User { name, .. }| format!("{name}:*:{day}:0:99999:7:::"))?;
    append("gshadow", &|User { name, .. }| format!("{name}:*::"))?;
    // sudo's own group, so that tools which look for it find the person in it.
    let group = fs::read_to_string(etc.join("group"))?;
    let joined = |line: &str| match line.strip_prefix("sudo:") {
        Some(_) if line.ends_with(':') => format!("{line}{person}\n"),
        _ => format!("{line}\n"),
    };
    Ok(fs::write(etc.join("group"), group.lines().map(joined).collect::<String>())?)
}

fn dated(shadow: &str, day: u64) -> String {
    let dated = |line: &str| {
        let mut fields: Vec<_> = line.split(':').map(str::to_owned).collect();
        if let Some(changed) = fields.get_mut(2) {
            *changed = day.to_string();
        }
        fields.join(":") + "\n"
    };
    shadow.lines().map(dated).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_account_remembers_the_day_of_the_build() {
        assert_eq!(dated("root:*:20000:0:99999:7:::\n", 5), "root:*:5:0:99999:7:::\n");
    }
}
