//! Tests that need a whole kernel, whole programs or the whole workspace; one module a subject.

mod differential;
mod hostile;
mod lifecycle;
mod oracle;
mod programs;
mod tidy;
