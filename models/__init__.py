"""What a model is: window, features, rule, network, bundle, registry."""
