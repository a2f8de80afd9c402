"""Load on a server that speaks OpenAI's API: `tokloom bench serve URL`."""
