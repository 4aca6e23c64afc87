"""The networks of the paper's image experiments: LeNet and ResNet18."""
