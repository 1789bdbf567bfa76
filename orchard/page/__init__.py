"""The page: the log in a browser.

Everything that a model, a task or a web page wrote is hostile text. It reaches the browser escaped, under a
policy that runs no script and no style but the page's own files.
"""
