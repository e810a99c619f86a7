//! On whose behalf files are deleted once nobody has them open, if that is not the last who has.
//!
//! The state of files ([`smb::files::Shard`]) knows which names are to go. What is kept here comes and goes with what
//! it knows.

use std::collections::HashMap;

use smb::files::FileKey;

use super::acting::Whose;

/// A name that is to go, or a stream of what has it.
#[derive(Debug)]
struct Wish {
    link: u64,
    stream: u64,
    whose: Whose,
}

/// Who wished that names go, by file.
#[derive(Debug, Default)]
pub(super) struct Deleters(HashMap<FileKey, Vec<Wish>>);

fn file(key: FileKey) -> FileKey {
    FileKey { stream: 0, ..key }
}

impl Deleters {
    /// This name is to go, or this stream of it, on somebody's behalf: who said so last.
    pub(super) fn wish(&mut self, key: FileKey, link: u64, whose: Whose) {
        let wishes = self.0.entry(file(key)).or_default();
        match wishes.iter_mut().find(|wish| (wish.link, wish.stream) == (link, key.stream)) {
            Some(wish) => wish.whose = whose,
            None => wishes.push(Wish { link, stream: key.stream, whose }),
        }
    }

    /// It goes now, or is to stay: on whose behalf it was to go. Streams go with their file.
    pub(super) fn take(&mut self, key: FileKey, link: u64) -> Option<Whose> {
        let wishes = self.0.get_mut(&file(key))?;
        let this = |wish: &Wish| (wish.link, wish.stream) == (link, key.stream);
        let taken = wishes.iter().position(this).map(|at| wishes.swap_remove(at).whose);
        if key.stream == 0 {
            wishes.retain(|wish| wish.link != link);
        }
        if wishes.is_empty() {
            self.0.remove(&file(key));
        }
        taken
    }

    /// A name of the file is another one.
    pub(super) fn renamed(&mut self, key: FileKey, from: u64, to: u64) {
        let wishes = self.0.get_mut(&file(key)).into_iter().flatten();
        wishes.filter(|wish| wish.link == from).for_each(|wish| wish.link = to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FileKey = FileKey { device: 1, inode: 2, stream: 0 };
    const STREAM: FileKey = FileKey { stream: 3, ..KEY };

    #[test]
    fn each_name_of_a_file_has_its_own() {
        let mut deleters = Deleters::default();
        deleters.wish(KEY, 10, None);
        deleters.wish(KEY, 20, None);
        assert!(deleters.take(KEY, 10).is_some());
        assert!(deleters.take(KEY, 10).is_none(), "that was taken");
        assert!(deleters.take(KEY, 20).is_some() && deleters.0.is_empty());
    }

    #[test]
    fn streams_have_their_own_and_go_with_their_file() {
        let mut deleters = Deleters::default();
        deleters.wish(STREAM, 10, None);
        assert!(deleters.take(STREAM, 20).is_none());
        assert!(deleters.take(STREAM, 10).is_some() && deleters.0.is_empty());
        deleters.wish(STREAM, 10, None);
        deleters.wish(KEY, 10, None);
        assert!(deleters.take(KEY, 10).is_some() && deleters.0.is_empty());
    }

    #[test]
    fn a_wish_follows_its_name() {
        let mut deleters = Deleters::default();
        deleters.wish(KEY, 10, None);
        deleters.wish(STREAM, 10, None);
        deleters.wish(KEY, 20, None);
        deleters.renamed(KEY, 10, 30);
        assert!(deleters.take(KEY, 10).is_none() && deleters.take(KEY, 20).is_some());
        assert!(deleters.take(STREAM, 30).is_some() && deleters.take(KEY, 30).is_some());
    }
}
