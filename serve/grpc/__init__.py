"""The gRPC front end over the embedding API: package `tokloom.v1`, described in `protos/tokloom/v1/inference.proto`."""
