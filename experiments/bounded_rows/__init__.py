"""What stops a client from sending a huge row: a proof of its norm over two servers, measured."""
