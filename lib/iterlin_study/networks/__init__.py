"""The paper's networks: LeNet and ResNet18."""
