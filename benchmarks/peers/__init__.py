"""The other engines: how each is started and asked, and where its build is looked for. Never needed to be there."""
